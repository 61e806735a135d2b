"""Tests that the part of a segment in each subtree, found by directories, is right. covers: shares.py, Channels"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp.batch import Segment, narrow
from chp.hashmap import Hashmap
from chp.headers import Batch
from chp.keys import channel_topic
from chp.limits import DEFAULT
from chp_server.core.state.shares import Subtrees
from chp_server.core.updates import channels as channels_module
from chp_server.core.updates.channels import PublishedChannels
from chp_server.core.updates.listeners import LINGER_S

NAMES = st.sampled_from(["a", "b", "ab", "", "c/d", "é"])
ODD = NAMES.map("x".__add__)
KEYS = st.lists(st.builds("/".join, st.lists(NAMES, min_size=1, max_size=4)).map("/".__add__) | ODD, min_size=1)
PATHS = st.lists(NAMES, max_size=3).map(lambda names: "/" + "".join(f"{name}/" for name in names))
SUBTREES = st.sets(PATHS | st.just(""))


def wanted(subtrees: set[str]) -> Subtrees:
    made = Subtrees()
    for subtree in [*subtrees, "/gone/", *subtrees]:
        made.add(subtree)
    if "/gone/" not in subtrees:
        made.remove("/gone/")
    return made


def by_passes(segment: Segment, subtrees: set[str]) -> dict[str, list[object]]:
    parts = {subtree: narrow(segment, subtree) for subtree in subtrees}
    return {subtree: [part.keys, part.values, part.extras] for subtree, part in parts.items() if part is not None}


@given(KEYS, SUBTREES, st.booleans())
def test_shares_equal_a_full_pass_for_each_subtree(keys: list[str], subtrees: set[str], timed: bool) -> None:
    values = [b"%d" % i for i in range(len(keys))]
    segment = Segment(keys, values, {"d": [0], "t": [[len(keys) - 1], [5]]} if timed else None)
    found = {subtree: [part.keys, part.values, part.extras] for subtree, part in wanted(subtrees).shares(segment)}
    assert found == by_passes(segment, subtrees)


def test_a_subtree_with_all_keys_gets_the_segment_itself() -> None:
    segment = Segment(["/a/b/1", "/a/c/2"], [b"1", b"2"], None)
    assert {subtree: part is segment for subtree, part in wanted({"", "/a/", "/a/b/"}).shares(segment)} == {
        "": True, "/a/": True, "/a/b/": False,
    }  # fmt: skip


def test_keys_outside_all_subtrees_make_no_part() -> None:
    assert not list(wanted({"/b/", "/a/1/"}).shares(Segment(["/a/1"], [b"1"], None)))


def published(few: int, monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    monkeypatch.setattr(channels_module, "FEW", few)
    channels, hashmap = PublishedChannels(DEFAULT), Hashmap()
    for subtree in ("", "/a/", "/a/b/", "/c/", "/d/"):
        channels.subscribe(channel_topic(subtree), State(), b"1", 0.0)
    out = []
    for no, keys in enumerate((["/a/1"], ["/a/b/1", "/c/1"], ["/x"], ["/a/1", "/a/b/1"], ["/d/1", "/c/1"])):
        segment = Segment(keys, [b"v"] * len(keys), None)
        channels.note(segment, segment.encode(), no + 1, hashmap)
        hashmap.apply(segment, no + 1, 0.0)
        out += sorted(channels.publish(Batch(no, no + 1, no + 1, 0, [], False), b"whole", 0, 1))
    out += sorted([c.subtree.encode(), b"%d %d" % c.fingerprint(hashmap)] for c in channels.by_topic.values())
    return out


class State:
    number = 0


def test_many_and_few_channels_publish_equal_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert published(0, monkeypatch) == published(100, monkeypatch)


def test_the_cost_of_an_update_does_not_depend_on_other_subtrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: no channel but those above the key is looked at."""
    channels = PublishedChannels(DEFAULT)
    for i in range(1000):
        channels.subscribe(channel_topic(f"/s{i}/"), State(), b"1", 0.0)
    looks: list[object] = []
    monkeypatch.setattr(channels_module, "narrow", lambda *_: looks.append(1))
    segment = Segment([f"/s7/{i}" for i in range(1000)], [b"v"] * 1000, None)
    channels.note(segment, segment.encode(), 1, Hashmap())
    assert not looks
    (channel,) = (c for c in channels.by_topic.values() if c.parts)
    assert channel.subtree == "/s7/"
    channels.listeners.leave(b"1", channel_topic("/s7/"), 0.0)
    channels.let_go(LINGER_S)
    channels.note(segment, segment.encode(), 1, Hashmap())
    assert not channels.publish(Batch(0, 1, 1, 0, [], False), b"whole", 0, 1)
