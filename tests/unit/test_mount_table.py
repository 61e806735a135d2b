"""Tests of mounts: which pair has a key, a subtree and a topic, and what is said of bad tables.

covers: chp_client/mount_table.py, the mounts of client files and of CHP_SERVERS
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from chp.errors import BadInput, BadKey, BadSubtree
from chp_client import ClientFile, Clone
from chp_client.clientfile import credentials_of
from chp_client.mount_table import Mounts
from chp_client.spark import options
from chp_client.target import mounts_of, servers_of
from tests.wire import keys

TEXT = "/=a:1,b:5 /rates/=c:9 /rates/EUR/=d:13"
MOUNTS = Mounts.of_tables(
    {"/": ["a:1", "b:5"], "/rates/": ["c:9"], "/rates/EUR/": "d:13"},
    {"ticks.*": "/rates/", "ticks.a": "/", "ticks.eur.*": "/rates/EUR/", "orders": "/rates/"},
)
ELSEWHERE = Mounts.of_text("/rates/=c:9 /stock/=d:13")


@pytest.mark.parametrize(
    ("key", "mount"),
    [("/rates/EUR/USD", "/rates/EUR/"), ("/rates/EUR", "/rates/"), ("/rates", "/"), ("/ratesx/", "/"), ("plain", "/")],
)
def test_a_key_belongs_to_the_mount_with_the_longest_prefix(key: str, mount: str) -> None:
    assert MOUNTS.of_key(key) == mount


def test_a_key_without_a_mount_is_refused_with_the_list_of_mounts() -> None:
    assert ELSEWHERE.find("/x") is None
    with pytest.raises(BadKey, match=r"no mount has the key '/x' \('/rates/' is c:9; .*add the mount '/'"):
        ELSEWHERE.of_key("/x")
    with pytest.raises(BadSubtree, match="no mount has the subtree '/x/'"):
        ELSEWHERE.split(["/x/"])
    with pytest.raises(BadInput, match=r"no mount has the topic 'orders'.*map it in"):
        ELSEWHERE.of_topic("orders")


@pytest.mark.parametrize(
    ("topic", "mount"),
    [
        ("orders", "/rates/"), ("orders2", "/"), ("ticks.b", "/rates/"), ("ticks.a", "/"),
        ("ticks.eur.x", "/rates/EUR/"),
        ("orders.group.dead", "/rates/"), ("orders.my.group.dead", "/rates/"), ("ticks.a.group.dead", "/"),
        ("ticks.eur.g.dead", "/rates/"), ("ticks.eur.usd.g.dead", "/rates/EUR/"), ("orders.g.dead.h.dead", "/rates/"),
        (".dead", "/"), ("x.dead", "/"),
    ],
)  # fmt: skip
def test_a_topic_and_its_dead_topic_are_in_the_mapped_mount(topic: str, mount: str) -> None:
    assert MOUNTS.of_topic(topic) == mount


@pytest.mark.parametrize(
    ("subtrees", "found"),
    [
        ([""], {"/": [""], "/rates/": ["/rates/"], "/rates/EUR/": ["/rates/EUR/"]}),
        (["/rates/"], {"/rates/": ["/rates/"], "/rates/EUR/": ["/rates/EUR/"]}),
        (["/rates/EUR/USD/", "/x/"], {"/rates/EUR/": ["/rates/EUR/USD/"], "/": ["/x/"]}),
    ],
)
def test_subtrees_are_split_among_overlapping_mounts(subtrees: list[str], found: dict[str, list[str]]) -> None:
    assert MOUNTS.split(subtrees) == found
    assert ELSEWHERE.split([""]) == {"/rates/": ["/rates/"], "/stock/": ["/stock/"]}


def test_each_mount_has_ranges_of_keys_that_do_not_overlap() -> None:
    assert MOUNTS.ranges("", None) == [
        ("/", "", "/rates/"), ("/rates/", "/rates/", "/rates/EUR/"), ("/rates/EUR/", "/rates/EUR/", "/rates/EUR0"),
        ("/rates/", "/rates/EUR0", "/rates0"), ("/", "/rates0", None),
    ]  # fmt: skip
    assert MOUNTS.ranges("/rates/EUR/U", "/rates/EUR/V") == [("/rates/EUR/", "/rates/EUR/U", "/rates/EUR/V")]
    assert ELSEWHERE.ranges("/s", "/t") == [("/stock/", "/stock/", "/stock0")]
    for key in ("/rates/EUR/", "/rates/EUR0", "/rates/x", "/a", "z", "/rates"):
        [mount] = [mount for mount, low, high in MOUNTS.ranges("", None) if low <= key and (high is None or key < high)]
        assert mount == MOUNTS.of_key(key)


def test_keys_of_two_mounts_are_refused_with_both_names() -> None:
    assert MOUNTS.of_keys("set_many", ["/rates/a", "/rates/b"]) == "/rates/"
    for found in (["/a", "/rates/b"], ["/rates/b", "/a"], ["/rates/b", "/rates/EUR/c"]):
        with pytest.raises(BadInput, match=r"set_many spans two mounts: '/.*' is of '/.*', and '/.*' is of '/"):
            MOUNTS.of_keys("set_many", found)
    with pytest.raises(BadKey):
        MOUNTS.of_keys("set_many", ["/a", 7])  # type: ignore[list-item]


BAD = [
    ("/=a:1 /=b:5", "the mount '/' twice"),
    ("/= /rates/=c:9", "the mount '/' without a server"),
    ("/=, ", "the mount '/' without a server"),
    ("rates=c:9", "must be '' or begin and end with '/'; try '/rates/'"),
    ("/rates=c:9", "try '/rates/'"),
    ("=c:9", "a mount without a prefix"),
    ("/=a:1,b:5, c:9", "'c:9' without a mount"),
    ("/=" + ",".join(f"a:{port}" for port in range(1, 18)), "17 servers in the mount '/', more than 16"),
    ("/=a:1,a:1", "a:1 twice in the mount '/'"),
    ("/=a:1 /rates/=a:1", "tcp://a:1 in the mounts '/' and '/rates/'"),
    ("/=a:99999", "the server 'a:99999' in the mount '/', which"),
    (" ".join(f"/{i}/=a:{i + 1}" for i in range(17)), "17 mounts, more than 16"),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=range(len(BAD)))
def test_a_bad_mount_text_is_refused_with_the_reason(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput) as found:
        Clone(text)
    assert words in str(found.value) and "\n" not in str(found.value)
    monkeypatch.setenv("CHP_SERVERS", text)
    with pytest.raises(BadInput, match="CHP_SERVERS: "):
        Clone()


def test_mounts_may_be_given_as_a_mapping() -> None:
    assert mounts_of({"/": ["a:1", "b:5"], "/rates/": ["c:9"], "/rates/EUR/": ["d:13"]}, None) == Mounts.of_text(TEXT)
    with pytest.raises(BadInput, match=r"the mount '/' with 7; write a list"):
        Clone({"/": 7})
    with pytest.raises(BadInput, match="no mount in its table"):
        Clone({})


def test_several_mounts_are_refused_where_one_pair_is_needed() -> None:
    for act in (lambda: servers_of(TEXT, None), lambda: Kind(TEXT)):
        with pytest.raises(
            BadInput, match=r"several pairs are named \('/' is a:1,b:5; .*give it the servers of one mount"
        ):
            act()


def test_a_reader_gets_the_pair_that_has_the_subtree_or_topic() -> None:
    assert servers_of(TEXT, None, "/rates/EUR/") == ("tcp://d:13",) == servers_of(TEXT, None, "/rates/EUR/USD/")
    for subtree in ("", "/rates/"):
        with pytest.raises(BadInput, match=f"the subtree '{subtree}' spans the mounts '/.*' and '/rates/.*; name a"):
            servers_of(TEXT, None, subtree)
    assert options.parse({"servers": TEXT, "subtree": "/x/"})["servers"] == ("tcp://a:1", "tcp://b:5")
    assert options.parse({"servers": TEXT, "topic": "orders"})["servers"] == ("tcp://a:1", "tcp://b:5")
    with pytest.raises(options.BadOption, match="option subtree: the subtree '' spans the mounts '/' and '/rates/'"):
        options.parse({"servers": TEXT})
    with pytest.raises(options.BadOption, match=r"option servers is '/=': has the mount '/' without a server"):
        options.parse({"servers": "/="})


class Kind(Clone):
    """A kind of Clone of an application, which overrides what a view could not call."""


# -- client files

ALICE, OTHER = keys.new_pair(), keys.new_pair()
SERVERS = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:5", "tcp://127.0.0.1:9")
TABLE = """
[mounts]
"/" = ["127.0.0.1:1", "127.0.0.1:5"]
"/rates/" = ["127.0.0.1:9"]

[topics]
"ticks.*" = "/rates/"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a client file with two mounts."""
    path = keys.client_file(tmp_path / "alice.toml", ALICE, dict.fromkeys(SERVERS, OTHER.public))
    path.write_text(path.read_text() + TABLE)
    return path


def test_mounts_of_a_client_file_use_its_key_pair(file: Path) -> None:
    mounts = mounts_of(None, file)
    assert mounts is not None and mounts.of_topic("ticks.a") == "/rates/" and list(mounts.servers) == ["/", "/rates/"]
    rates = mounts.servers["/rates/"]
    assert options.parse({"clientFile": str(file), "subtree": "/rates/"})["servers"] == rates
    assert isinstance(rates, ClientFile) and rates.mounts is None and tuple(rates) == SERVERS[2:]
    assert credentials_of(rates)[SERVERS[2]].pair == ALICE
    found = ClientFile.read(file)
    again = pickle.loads(pickle.dumps(found))
    assert again == found and again.mounts == mounts != found.only(SERVERS).mounts
    assert found != found.only(SERVERS) and pickle.loads(pickle.dumps(found.only(SERVERS))).mounts is None
    with Clone(client_file=file) as clone:
        assert list(clone.mounts) == ["/", "/rates/"] and ALICE.secret.decode() not in f"{clone!r} {clone.describe()}"
        clone.close(0.0)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["127.0.0.1:9"]', '["127.0.0.1:13"]', "tcp://127.0.0.1:13 in the mount '/rates/', and no [[servers]]"),
        ('["127.0.0.1:9"]', "[]", "the mount '/rates/' without a server"),
        ('["127.0.0.1:9"]', "7", "the mount '/rates/' with 7; write a list"),
        ('"/rates/" = [', '"/rates" = [', "try '/rates/'"),
        ('"/rates/" = [', '"/" = [', "is not TOML"),
        ('"ticks.*" = "/rates/"', '"ticks.*" = "/x/"', "maps the topic 'ticks.*' to '/x/', which is no mount"),
        ('"ticks.*"', '"*.ticks"', "maps a topic that can't be one"),
        ('"ticks.*"', '"*"', "maps a topic that can't be one"),
        ("[mounts]", "[mounted]", "'mounted', which is not known"),
        (TABLE, '[topics]\n"a" = "/"', "[topics] without [mounts]"),
        (TABLE, "[mounts]", "no mount in its table"),
    ],
    ids=range(11),
)
def test_a_bad_client_file_is_refused_with_its_name_and_the_reason(file: Path, old: str, new: str, words: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(BadInput) as found:
        Clone(client_file=file)
    assert str(file) in str(found.value) and words in str(found.value)
