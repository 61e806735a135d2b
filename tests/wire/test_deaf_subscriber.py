"""Tests of a client that hears nothing: it connects its SUB socket anew, subscribes again, and hears."""

from chp.keys import channel_topic
from chp_client import Clone
from chp_client.clone.base import internals
from chp_server.testing import TestServer
from tests.talk import until

TOPIC = channel_topic("")


def test_a_sub_socket_that_is_connected_anew_subscribes_again() -> None:
    with TestServer() as server, Clone([server.address]) as clone, Clone([server.address]) as writer:
        writer.set("/first", b"1").wait(60)
        until(lambda: clone.get("/first") == b"1")
        seen: list[bytes] = []
        serving = server.server.core  # type: ignore[union-attr]
        subscription = serving.subscription

        def noted(frames: list[bytes]) -> None:
            seen.extend(frames[1:])
            subscription(frames)

        serving.subscription = noted  # type: ignore[method-assign]
        mailbox = internals(clone).mailbox
        for again in range(1, 4):
            with mailbox.lock:
                # The core adds this effect when it hears nothing from a server.
                mailbox.core.out.effects.reconnect.append(0)
            clone.set("/wake", b"%d" % again).wait(60)
            until(lambda: seen.count(b"\x01" + TOPIC) == again)  # noqa: B023
            writer.set("/last", b"%d" % again).wait(60)
            until(lambda: clone.get("/last") == b"%d" % again, clone.describe())  # noqa: B023
        assert seen.count(b"\x00" + TOPIC) == 3 and clone.verify().ok
