"""covers: the list of connected clients: what clients report, what a server keeps of that, and for how long."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from chp.batch import packb, split
from chp.errors import BadFrame
from chp.messages import ICANHAZ
from chp.versions import VERSION
from chp_server.core.questions.clients import CLIENTS_MAX, LISTED_MAX, SUBTREES_TEXT_MAX, Clients

from .client_frames import ACTIVE, OTHER, WHOSE, message, n, topic
from .client_frames import Talk as ClientTalk
from .server_talk import Talk

TELLS = b"\x02client\x03"


def told(talk: Talk, identity: bytes = b"one", **said: Any) -> None:
    talk.core.request([identity, ICANHAZ, TELLS, packb({"chp": VERSION, "id": 0, **said})])


def listed(talk: Talk, **options: Any) -> list[Any]:
    """Return the header of the answer to an operator, which is a REPLY or a REFUSED."""
    talk.core.request([b"op", ICANHAZ, b"\x02clients\x03", packb({"chp": VERSION, "id": 7, **options})])
    replies = [frames for identity, frames in talk.turn(0.0).replies if identity == b"op"]
    header: list[Any] = split(replies[-1][0][4])[0]
    return header


def names(talk: Talk, **options: Any) -> list[str]:
    return [each["name"] for each in listed(talk, **options)[2]["clients"]]


def test_the_client_list_has_the_clients_report_and_the_servers_own_facts() -> None:
    talk = Talk()
    talk.core.requests.clients.address_of = lambda identity: "10.0.0.7:4711"
    told(
        talk,
        name="rates",
        program="feeder.py",
        host="a",
        pid=12,
        version="0.1.0",
        client="00ff",
        subtrees=["/rates/"],
        keys=3,
        lag_ms=4,
    )
    turn = talk.turn(2.0)
    assert not turn.replies, "it is not answered"
    (client,) = listed(talk)[2]["clients"]
    assert client["name"] == "rates" and client["program"] == "feeder.py" and client["subtrees"] == ["/rates/"]
    assert client["client"] == "00ff" and client["keys"] == 3 and client["lag_ms"] == 4 and client["pid"] == 12
    assert client["address"] == "10.0.0.7:4711" and client["heard_s"] == 2.0 and client["user"] == ""
    assert talk.core.status()["clients"] == 1


def test_a_later_report_of_a_client_replaces_its_earlier_report() -> None:
    talk = Talk()
    told(talk, b"one", name="one", keys=1)
    told(talk, b"two", name="two")
    talk.turn(1.0)
    told(talk, b"one", name="one", keys=9)
    first, second = listed(talk)[2]["clients"]
    assert (first["name"], first["keys"], first["since_s"], first["heard_s"]) == ("one", 9, 1.0, 0.0)
    assert second["name"] == "two"


def test_a_client_that_is_silent_for_three_report_intervals_leaves_the_list() -> None:
    talk = Talk()
    told(talk, b"fast", name="fast", every_ms=5000)
    told(talk, b"slow", name="slow", every_ms=60_000)
    talk.turn(14.0)
    assert names(talk) == ["fast", "slow"]
    talk.turn(6.0)
    assert names(talk) == ["slow"]


def test_the_list_comes_by_pages_in_order_of_arrival() -> None:
    clients = Clients()
    for i in range(LISTED_MAX + 3):
        clients.told(b"%d" % i, {"name": str(i)}, "", 0.0)
    first = clients.listed(0, 0.0)
    assert (len(first["clients"]), first["count"]) == (LISTED_MAX, LISTED_MAX + 3)
    rest = clients.listed(first["clients"][-1]["place"], 0.0)["clients"]
    assert [each["name"] for each in rest] == [str(i) for i in range(LISTED_MAX, LISTED_MAX + 3)]


def test_a_full_client_list_drops_the_client_unheard_the_longest() -> None:
    clients = Clients()
    for i in range(CLIENTS_MAX):
        clients.told(b"%d" % i, {}, "", 1.0 if i else 0.0)
    clients.told(b"new", {"name": "new"}, "", 2.0)
    assert len(clients) == CLIENTS_MAX
    assert clients.listed(0, 2.0)["clients"][0]["place"] == 2, "the first one was unheard longest"


def test_long_words_are_cut() -> None:
    clients = Clients()
    clients.told(b"x", {"name": "n" * 60_000, "subtrees": [f"/{'s' * 500}/"] * 64}, "", 0.0)
    (client,) = clients.listed(0, 0.0)["clients"]
    assert len(client["name"]) == 200 and sum(map(len, client["subtrees"])) <= SUBTREES_TEXT_MAX


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"name": 5}, "'name'"), ({"host": b"a"}, "'host'"), ({"keys": -1}, "'keys'"), ({"pid": "12"}, "'pid'"),
        ({"lag_ms": 1.5}, "'lag_ms'"), ({"number": 1 << 63}, "'number'"), ({"keys": True}, "'keys'"),
        ({"subtrees": "/a/"}, "'subtrees'"), ({"subtrees": [b"/a/"]}, "'subtrees'"), ({"every_ms": 0}, "'every_ms'"),
        ({"every_ms": 10**9}, "'every_ms'"),
    ],
)  # fmt: skip
def test_a_report_with_a_malformed_field_is_refused_and_counted(said: dict[str, Any], named: str) -> None:
    with pytest.raises(BadFrame, match=named):
        Clients().told(b"x", said, "", 0.0)
    talk = Talk()
    told(talk, **said)
    assert talk.core.committer.counts["garbage_snapshot"] == 1 and not talk.turn().replies
    assert names(talk) == []


def test_a_list_request_after_an_invalid_place_is_refused() -> None:
    assert listed(Talk(), after="x")[2] == "bad"


# -- the client


def joined(**options: Any) -> ClientTalk:
    talk = ClientTalk("/r/", servers=2, **options)
    talk.core.on_update(0, message(topic("/r/"), n(5), [0, 4, ACTIVE, n(5), 250, OTHER, "a"]), talk.now)
    talk.take()
    return talk


def tells(talk: ClientTalk) -> list[tuple[int, dict[str, Any]]]:
    found = [(i, options) for i, subject, options in talk.requests if subject == "\x02client\x03"]
    talk.requests.clear()
    return found


def at(talk: ClientTalk, now: float) -> None:
    talk.now = now
    talk.core.on_update(0, message(topic("/r/"), n(5), [0, 4, ACTIVE, n(5), 250, OTHER, "a"]), talk.now)
    talk.core.on_timer(now)
    talk.take()


def test_a_client_reports_soon_after_joining_and_then_every_five_seconds() -> None:
    talk = joined(who={"name": "me"})
    at(talk, 100.4)
    assert tells(talk) == [], "who comes for one question says nothing"
    at(talk, 100.6)
    ((server, said),) = tells(talk)
    assert (server, said["name"], said["every_ms"], said["state"]) == (0, "me", 5000, "CONNECTING")
    at(talk, 105.0)
    assert tells(talk) == []
    at(talk, 105.7)
    assert len(tells(talk)) == 1
    assert WHOSE and msgpack.packb(said), "it is what msgpack takes"


def test_the_client_core_wakes_for_its_report() -> None:
    assert joined(who={"name": "me"}).core.next_deadline() <= 100.5
    assert joined().core.report.due == float("inf"), "a core that was not told who it is says nothing"


def test_a_server_takes_the_report_that_a_client_sends() -> None:
    talk = joined(who={"name": "me", "subtrees": ["/r/"]})
    at(talk, 100.6)
    ((_, said),) = tells(talk)
    server = Talk()
    told(server, **{name: value for name, value in said.items() if name not in ("chp", "id")})
    assert names(server) == ["me"]
