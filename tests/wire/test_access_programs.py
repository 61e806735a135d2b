"""Tests of access rules for what programs do: recordings, feeds, topics, leases, staging, conditions, sessions.

covers: the matrix of users, ports and secrets (SPEC.md, section 36), beside tests/wire/test_access.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

from chp import headers
from chp.batch import Segment, decode, packb
from chp.columns import SHOWN
from chp.keys import RESERVED_KEY, channel_topic, public_session, session_topic
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp_client import Clone, Refused
from chp_client.clientfile import ClientFile
from chp_client.port.admin import Admin
from chp_client.port.feed import Feed
from tests.talk import WAIT_S, join_all, until
from tests.wire import keys
from tests.wire.test_access import (
    BOB,
    NAME,
    QUIET_S,
    ROOT,
    RULES,
    SECRET,
    Who,
    heard,
    tells_nothing,
    told_a_secret,
    writes,
)  # fmt: skip

NO_RULE: dict[str, Any] = {**RULES, "users": {**RULES["users"], "bob": {}}}
TOPIC = "secret-orders"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Who]:
    """Start a pair where bob may use /pub/ and the topic `open`, and root has set and published a secret."""
    with told_a_secret(tmp_path_factory.mktemp("doors")) as who:
        with who.clone("root") as root:
            root.topic(TOPIC).publish(SECRET).wait(WAIT_S)
        yield who


def refused_by(what: Callable[[], Any]) -> Refused:
    """Return the refusal of an act, and check that it comes soon and tells nothing."""
    began = time.monotonic()
    with pytest.raises(Refused) as refused:
        what()
    assert refused.value.code == "access" and time.monotonic() - began < WAIT_S / 2
    tells_nothing([[str(refused.value).encode()]])
    return refused.value


def chp(who: Who, user: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `chp` as a user."""
    argv = [sys.executable, "-m", "chp_client.cli", "--client-file", str(who.files[user]), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S * 2, check=False)


def kvset(who: Who, user_key: Any, session: bytes, no: int, segment: Segment) -> headers.Refused | headers.Ack:
    """Send a batch by hand, and return the answer to its session."""
    with who.socket(zmq.SUB, 1, user_key) as sub, who.socket(zmq.PUB, 2, user_key) as pub:
        sub.subscribe(session_topic(public_session(session)))
        sub.recv_multipart()
        frames = [RESERVED_KEY, pack(no), session, b"", segment.encode()]
        until(lambda: pub.send_multipart(frames) is None and sub.poll(100), "an answer")
        answers = heard(sub)
        tells_nothing([frame for frame in answers if NAME not in segment.keys])
        header, _ = decode(answers[0][4])
        assert isinstance(header, headers.Refused | headers.Ack)
        return header


# -- recordings, feeds, copies by programs


@pytest.mark.parametrize("words", [
    ("record", "OUT", "--subtree", "/secret/"), ("record", "OUT"), ("get", NAME),
    ("ls", "/secret/"), ("dump", "/"), ("du", "/"), ("history", NAME), ("watch", "/secret/", "--count", "1"),
    ("sub", TOPIC), ("topic", "show", TOPIC), ("topic", "ls"), ("leases",), ("status",), ("backup",),
])  # fmt: skip
def test_no_chp_command_of_a_denied_user_tells_the_secret(told: Who, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = chp(told, "bob", *(str(tmp_path / "recorded") if word == "OUT" else word for word in words))
    assert done.returncode not in (0, 2), (done.stdout, done.stderr)
    said = (done.stdout + done.stderr).replace(" ".join(words), "")
    assert SECRET.decode() not in said and "ask root" in said, said
    assert "Traceback" not in said
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET in text or b"name-of-it" in text for text in files)


def _fetched(feed: Feed) -> list[Any]:
    return list(feed.fetch(0, WAIT_S))


def test_a_feed_has_only_keys_that_its_user_may_read(told: Who) -> None:
    file = ClientFile.read(told.files["bob"])
    for subtree in ("", "/secret/"):
        with Feed(file, subtree) as feed:
            for ask in (partial(_fetched, feed), partial(feed.snapshot, WAIT_S), partial(next, feed.follow(0))):
                refused_by(ask)
    with Feed(file, "/pub/") as feed:
        records = [record for chunk in feed.fetch(0, WAIT_S) for record in chunk]
        assert {key for record in records for key in record.keys} == {"/pub/a"}
        tells_nothing([[repr(records).encode()]])


def test_a_reader_of_a_transaction_sees_only_keys_of_its_subtree(told: Who) -> None:
    """A reader of a part of a batch hears no columns about the batch as a whole."""
    with told.socket(zmq.SUB, 1) as sub, told.clone("root") as root:
        sub.subscribe(channel_topic("/pub/"))
        # The greeting has come, so the socket hears the channel.
        assert sub.poll(int(WAIT_S * 1000))
        root.wait_until_synced(WAIT_S)
        secret = root.entry(NAME)
        assert secret is not None
        with root.transaction(WAIT_S) as step:
            step.expect(NAME, secret.revision)
            step.set("/pub/step", b"seen")
            step.publish(TOPIC, b"also-a-secret")
        came = sub.recv_multipart()
        while not any(b"seen" in frame for frame in came):
            came = sub.recv_multipart()
    with told.socket(zmq.DEALER, 0) as dealer:
        dealer.send_multipart([ICANHAZ, b"/pub/", packb({"chp": 4, "id": 7, "from": secret.revision, "credit": 8})])
        answer = heard(dealer)
    with Feed(ClientFile.read(told.files["bob"]), "/pub/") as feed:
        records = repr(_fetched(feed)).encode()
    for frames in (came, [b"".join(map(b"".join, answer))], [records]):
        assert any(b"/pub/step" in frame for frame in frames)
        tells_nothing([frames])
        assert not any(TOPIC.encode() in frame for frame in frames)


def test_a_running_feed_is_refused_after_the_right_to_read_is_revoked(who_alone: Who) -> None:
    who = who_alone
    with Feed(ClientFile.read(who.files["bob"]), "/pub/") as feed:
        came: list[Any] = []
        refusals: list[Refused] = []
        began = threading.Event()

        def follow() -> None:
            try:
                for records in feed.follow(0, idle_s=0.2):
                    came.extend(records)
                    began.set()
            except Refused as refused:
                refusals.append(refused)

        thread = threading.Thread(target=follow)
        thread.start()
        assert began.wait(WAIT_S)
        who.give(NO_RULE)
        with who.clone("root", subtree=None) as root:
            root.set("/pub/later", SECRET).wait(WAIT_S)
        join_all(thread)
        assert refusals and refusals[0].code == "access"
        assert SECRET not in repr(came).encode()


@pytest.fixture
def who_alone(tmp_path: Path) -> Iterator[Who]:
    """Start a pair for one test, whose rules may be changed."""
    with keys.pair_with_keys(tmp_path, ("root", ROOT), ("bob", BOB)) as pair:
        found = Who(pair, tmp_path)
        found.give(RULES)
        with found.clone("root", subtree=None) as root:
            root.set("/pub/a", b"1").wait(WAIT_S)
        yield found


# -- topics


@pytest.mark.parametrize("options", [
    {"topic": TOPIC}, {"topic": TOPIC, "facts": True}, {"topic": TOPIC, "after": -1, "credit": 8}, {"topics": ""},
    {"topic": "no-such-topic"}, {"topic": TOPIC.encode()}, {"topic": ["secret-orders"]}, {"topic": TOPIC, "topics": ""},
])  # fmt: skip
def test_a_denied_user_cannot_learn_whether_a_topic_exists(told: Who, options: dict[str, Any]) -> None:
    with told.socket(zmq.DEALER, 0) as dealer:
        dealer.send_multipart([ICANHAZ, b"/pub/", packb({"chp": 4, "id": 5, **options})])
        answers = heard(dealer)
        tells_nothing(answers)
        header, _ = decode(answers[0][4])
        assert isinstance(header, headers.Refused) and header.code == "access"


def test_a_denied_user_cannot_publish_to_a_topic(told: Who) -> None:
    with told.clone("bob", subtree=None) as bob:
        refused_by(lambda: bob.topic(TOPIC).publish(b"x").wait(WAIT_S))
        refused_by(lambda: bob.topic("of-his-own").publish(b"x").wait(WAIT_S))
    with told.clone("root", subtree=None) as root:
        assert next(iter(root.topic(TOPIC).read())).values == [SECRET]


def test_a_topic_reader_is_refused_after_its_right_is_revoked(who_alone: Who) -> None:
    who, topic = who_alone, "open"
    both = {"read": ["/pub/", f"/.chp/topics/{topic}/"], "write": ["/pub/"]}
    who.give({**RULES, "users": {**RULES["users"], "bob": both}})
    with who.clone("root", subtree=None) as root, who.clone("bob", subtree=None) as bob:
        root.topic(topic).publish(b"1").wait(WAIT_S)
        reading = iter(bob.topic(topic).read())
        assert next(reading).values == [b"1"]
        who.give(RULES)
        root.topic(topic).publish(SECRET).wait(WAIT_S)
        refused_by(lambda: next(reading))


# -- sets


def test_a_condition_on_an_unreadable_key_is_refused_without_its_revision(told: Who) -> None:
    rules = {**RULES, "users": {**RULES["users"], "bob": {"read": ["/pub/"], "write": ["/pub/", "/secret/"]}}}
    told.give(rules)
    try:
        for no, name in enumerate(("c", "n"), 1):
            for key in (NAME, "/secret/that-is-not-there"):
                session = f"bob {name} {len(key)}".encode().ljust(12, b".") + bytes(4)
                header = kvset(told, BOB, session, 1, Segment([key], [b"x"], {name: [[0], [7]]}))
                assert isinstance(header, headers.Refused) and header.code == "access", (no, header)
    finally:
        told.give(RULES)


def test_a_user_cannot_commit_staged_batches_of_another_user(told: Who) -> None:
    transaction = b"a transaction..."
    stage = Segment([NAME], [b"staged"], {"stage": [transaction, "0.0"]})
    commit = Segment([], [], {"commit": [transaction, "job", 1, [["0.0", 1]], None]})
    root, bob = b"root stages." + bytes(4), b"bob commits." + bytes(4)
    assert isinstance(kvset(told, ROOT, root, 1, stage), headers.Ack)
    header = kvset(told, BOB, bob, 1, commit)
    assert isinstance(header, headers.Refused)
    replaced = Segment([], [], {"commit": [transaction, "job", 1, [], "/secret/"]})
    header = kvset(told, BOB, b"bob replaces" + bytes(4), 1, replaced)
    assert isinstance(header, headers.Refused) and header.code == "access"
    with told.clone("root") as clone:
        clone.wait_until_synced(WAIT_S)
        assert clone[NAME] == SECRET


def test_a_user_cannot_count_up_the_application_of_another_user(told: Who) -> None:
    """A server silently skips a version that is done. So a stranger's higher count would suppress the next versions."""
    with told.clone("root") as root:
        root.wait_until_synced(WAIT_S)
        for version in (1, 2):
            with root.transaction(WAIT_S) as step:
                step.once("nightly", version)
                step.set("/pub/nightly", b"%d" % version)
            once = Segment(["/pub/x"], [b"x"], {"once": ["nightly", 10 * version, False]})
            commit = Segment([], [], {"commit": [b"t" * 16, "nightly", 10 * version, [], None]})
            for i, segment in enumerate((once, commit)):
                header = kvset(told, BOB, b"bob counts%d%d" % (version, i) + bytes(4), 1, segment)
                assert isinstance(header, headers.Refused) and "another user's" in str(header.detail), header
        until(lambda: root.get("/pub/nightly") == b"2", "the second version")


def test_a_user_cannot_change_or_end_the_transaction_of_another_user(told: Who) -> None:
    mine = b"of root's......."
    stage = Segment(["/pub/staged"], [b"1"], {"stage": [mine, "0.0"]})
    assert isinstance(kvset(told, ROOT, b"root drives." + bytes(4), 1, stage), headers.Ack)
    tries: list[dict[str, Any]] = [{"abort": mine}, {"stage": [mine, "1.0"]}, {"commit": [mine, "", 0, [], None]}]
    for what, extras in enumerate(tries):
        segment = Segment(["/pub/y"], [b"y"], extras) if "stage" in extras else Segment([], [], extras)
        header = kvset(told, BOB, b"bob aborts %d" % what + bytes(4), 1, segment)
        assert isinstance(header, headers.Refused) and "another user's" in str(header.detail), (extras, header)
    done = Segment([], [], {"commit": [mine, "", 0, [["0.0", 1]], None]})
    assert isinstance(kvset(told, ROOT, b"root commits" + bytes(4), 1, done), headers.Ack)


def test_a_user_without_the_right_to_write_cannot_count_up_an_application(who_alone: Who) -> None:
    who_alone.give({**RULES, "users": {**RULES["users"], "bob": {"read": ["/pub/"]}}})
    tries: list[dict[str, Any]] = [{"once": ["free", 1, False]}, {"commit": [b"t" * 16, "free", 1, [], None]}]
    for what, extras in enumerate(tries):
        header = kvset(who_alone, BOB, b"bob counts %d" % what + bytes(4), 1, Segment([], [], extras))
        assert isinstance(header, headers.Refused) and header.code == "access", header


def test_a_user_cannot_use_the_lease_of_another_user(told: Who) -> None:
    with told.clone("root", subtree=None) as root, root.lease(ttl=60) as lease:
        lease.set("/pub/held", b"1").wait(WAIT_S)
        with Admin(ClientFile.read(told.files["root"]), WAIT_S) as admin:
            listed = admin.ask(told.pair.primary.address, "leases").facts["leases"]
        name = bytes.fromhex(listed[0]["lease"])
        tries: list[dict[str, Any]] = [{"unlease": name}, {"refresh": name}, {"lease": [name, 1]}, {"l": name}]
        for what, extras in enumerate(tries):
            segment = Segment(["/pub/mine"], [b"x"], extras) if "l" in extras else Segment([], [], extras)
            header = kvset(told, BOB, b"bob leases %d" % what + bytes(4), 1, segment)
            assert isinstance(header, headers.Refused) and header.code in ("lease", "access"), (extras, header)


def test_a_snapshot_does_not_tell_the_session_number_of_another_user(told: Who) -> None:
    session = b"root's other" + bytes(4)
    kvset(told, ROOT, session, 1, Segment(["/pub/s"], [b"x"]))
    for pair, wanted in ((ROOT, 1), (BOB, None)):
        with told.socket(zmq.DEALER, 0, pair) as dealer:
            options = {"chp": 4, "id": 5, "from": 0, "credit": 8, "session": public_session(session)}
            dealer.send_multipart([ICANHAZ, b"/pub/", packb(options)])
            ends = [h for h in (decode(frames[4])[0] for frames in heard(dealer)) if isinstance(h, headers.Kthxbai)]
            assert ends[0].session_no == wanted


def test_a_reader_gets_only_columns_about_keys_of_its_subtree(told: Who) -> None:
    with told.clone("root") as root, told.socket(zmq.SUB, 1) as sub, told.socket(zmq.DEALER, 0) as dealer:
        root.wait_until_synced(WAIT_S)
        sub.subscribe(channel_topic("/pub/"))
        sub.recv_multipart()
        with root.transaction() as step:
            step.set("/pub/shown", b"1", ttl=60)
            step.expect(NAME, root.entry(NAME).revision)  # type: ignore[union-attr]
            step.once("name-of-it", 1)
            step.publish(TOPIC, SECRET)
        with root.topic(TOPIC).consumer("name-of-it") as consumer:
            batch = consumer.take(WAIT_S)
            assert batch is not None
            batch.commit(sets={"/pub/total": b"1"})
        told_of = [frames[4] for frames in heard(sub)]
        dealer.send_multipart([ICANHAZ, b"/pub/", packb({"chp": 4, "id": 5, "from": 0, "feed": True, "credit": 8})])
        fed = heard(dealer)
        tells_nothing([told_of, *fed])
        segments = [s for body in told_of if type(decode(body)[0]) is headers.Batch for s in decode(body)[1]]
        segments += [s for frames in fed for _, *parts in decode(frames[4])[1] for s in parts]
        assert [s for s in segments if "/pub/shown" in s[0]] and [s for s in segments if "/pub/total" in s[0]]
        assert {name for _, _, extras in segments for name in extras or ()} <= SHOWN
        assert any("t" in (extras or {}) for _, _, extras in segments), "what is said of the keys is"


def test_a_reader_of_a_topic_cannot_remove_or_reset_a_group(told: Who) -> None:
    reads = {**RULES["users"]["bob"], "read": ["/pub/", f"/.chp/topics/{TOPIC}/"]}
    told.give({**RULES, "users": {**RULES["users"], "bob": reads}})
    try:
        with told.clone("root") as root, Clone(client_file=told.files["bob"], subtree="/pub/") as bob:
            root.topic(TOPIC).subscribe("kept", "begin")
            topic = bob.topic(TOPIC)
            for what in (lambda: topic.unsubscribe("kept"), lambda: topic.reset("kept", "end")):
                assert "write topic" in str(refused_by(what).detail)
            assert [each["name"] for each in topic.groups()].count("kept") == 1
    finally:
        told.give(RULES)


def test_the_right_to_consume_by_one_group_allows_that_group_only(who_alone: Who) -> None:
    """A user with consume takes, acknowledges and resets in its group; it reads no topic and changes no other group."""
    users = {**RULES["users"], "bob": {"consume": [f"/.chp/topics/{TOPIC}/his/"]}}
    users["root"] = {**users["root"], "consume": [""]}
    who_alone.give({**RULES, "users": users})
    with who_alone.clone("root", subtree=None) as root, who_alone.clone("bob", subtree=None) as bob:
        root.topic(TOPIC).publish(b"1").wait(WAIT_S)
        root.topic(TOPIC).subscribe("kept", "begin")
        topic = bob.topic(TOPIC)
        topic.subscribe("his", "begin")
        with topic.consumer("his") as consumer:
            batch = consumer.take(WAIT_S)
            assert batch is not None and batch.values == [b"1"]
            batch.done().wait(WAIT_S)
            refused_by(lambda: next(iter(topic.read())))
        topic.reset("his", "begin")
        topic.unsubscribe("his")
        for what in (
            lambda: topic.unsubscribe("kept"),
            lambda: topic.reset("kept", "end"),
            lambda: topic.subscribe("more", "end"),
            lambda: topic.consumer("kept").take(WAIT_S),
        ):
            assert "consume by group" in str(refused_by(what).detail)
        assert [each["name"] for each in root.topic(TOPIC).groups()] == ["kept"]


def test_only_the_denied_subscriber_hears_the_refusal(told: Who) -> None:
    with told.socket(zmq.SUB, 1, ROOT) as root, told.socket(zmq.SUB, 1) as bob:
        root.subscribe(channel_topic("/secret/"))
        until(lambda: root.poll(100), "root's subscription is greeted")
        heard(root, 0.1)
        for _ in range(5):
            bob.subscribe(channel_topic("/secret/"))
            assert b"access" in bob.recv_multipart()[4]
            bob.unsubscribe(channel_topic("/secret/"))
        assert not [frames for frames in heard(root) if b"access" in frames[4]], "what bob may not is no news of root's"
        writes(told)
        assert any(SECRET in frames[4] for frames in heard(root, 2 * QUIET_S))
        tells_nothing(heard(bob))


STRAYS = {
    "before": [b"\x05stray", b"\x01" + channel_topic("/pub/")],
    "after": [b"\x01" + channel_topic("/pub/"), b"\x05stray"],
    "alone": [b"\x05stray"] * 3,
    "empty": [b"", b"\x00" + channel_topic("/pub/")],
}


@pytest.mark.parametrize("frames", STRAYS.values(), ids=STRAYS)
def test_stray_frames_of_a_user_do_not_disturb_the_subscription_of_another(told: Who, frames: list[bytes]) -> None:
    """libzmq counts a stray frame as a subscription. So it may apply an answer to root's connection to bob's."""
    done, hearings = threading.Event(), []

    def sends() -> None:
        while not done.is_set():
            with told.socket(zmq.XSUB, 1) as bob:
                for _ in range(30):
                    for frame in frames:
                        bob.send(frame)
                hearings.extend(heard(bob, 0.1))

    senders = [threading.Thread(target=sends) for _ in range(2)]
    for sender in senders:
        sender.start()
    try:
        for _ in range(20):
            with told.socket(zmq.SUB, 1, ROOT) as root:
                root.subscribe(channel_topic("/secret/"))
                until(lambda: root.poll(1000), "root is greeted, sooner or later")
                writes(told)
                until(lambda: any(SECRET in frame for frame in root.recv_multipart()), "root hears it")
    finally:
        done.set()
        for sender in senders:
            sender.join()
    tells_nothing(hearings)


def test_a_user_without_rules_hears_only_hugz_and_the_pulse(who_alone: Who) -> None:
    who_alone.give(NO_RULE)
    with who_alone.socket(zmq.SUB, 1) as sub:
        sub.subscribe(b"HUGZ")
        sub.subscribe(channel_topic("/.chp/pulse/"))
        writes(who_alone)
        messages = heard(sub, 2.0)
        tells_nothing(messages)
        assert messages and {frames[0] for frames in messages} <= {b"HUGZ", channel_topic("/.chp/pulse/")}
    with pytest.raises(Refused), who_alone.clone("bob") as bob:
        bob.wait_until_synced(WAIT_S)


def test_chp_get_as_json_does_not_tell_a_denied_user_the_secret(told: Who) -> None:
    done = chp(told, "bob", "--json", "get", NAME)
    said = (done.stdout + done.stderr).strip().splitlines()
    assert done.returncode and SECRET.decode() not in "".join(said)
    assert all(json.loads(line) is not None for line in done.stdout.splitlines())


def test_a_denied_clone_does_not_disturb_a_clone_of_another_user(told: Who) -> None:
    with (
        told.clone("root", subtree="/secret/") as root,
        Clone(client_file=told.files["bob"], subtree="/secret/") as bob,
    ):
        root.wait_until_synced(WAIT_S)
        with pytest.raises(Refused):
            bob.wait_until_synced(WAIT_S)
        until(lambda: root.stats.get("heartbeats", 1), "some time passes")
        assert not root.stats.get("subscriptions_refused") and bob.stats["subscriptions_refused"]
