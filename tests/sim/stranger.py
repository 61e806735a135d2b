"""A stranger: a hostile program that hears all that servers publish, and forges messages with that.

It sends the next batch of each session, ends each lease and cancels each topic that it has heard of. It tries to pass
for the clients that own them. None of its messages may change anything for those clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from .network import Conn, Frames

if TYPE_CHECKING:
    from .servers import ServerNode

OWN = b"stranger".ljust(16, b"\0")
# The stranger poses as the peer only if the server heard its peer within this time, which is less than peer_timeout_s.
HEARD_S = 0.8


class Stranger:
    """A hostile program, with the sessions, leases and topics that it has heard of."""

    def __init__(self) -> None:
        # session -> its last batch
        self._sessions: dict[bytes, int] = {}
        self._leases: dict[bytes, None] = {}
        self._topics: dict[bytes, None] = {}
        self._no = 0
        # Publications that the stranger has heard, and has not looked at yet.
        self._heard: list[Frames] = []

    def hears(self, messages: list[Frames]) -> None:
        """Hear publications, as a subscriber of everything."""
        self._heard += messages

    def _learn(self) -> None:
        """Read what was heard since the last act. Most strangers never act, so they read nothing."""
        heard, self._heard = self._heard, []
        for frames in heard:
            self._topics[frames[0]] = None
            if frames[0][:1] != b"\x02":
                continue
            header, *segments = msgpack.unpackb(frames[4], strict_map_key=False)
            if header[0] == 1:
                self._sessions.update(dict(header[5]))
                self._leases.update({e["l"]: None for _, _, e in segments if e and "l" in e})

    def acts(self, node: ServerNode) -> None:
        """Send forged messages to one server."""
        self._learn()
        collector, updates = Conn("set", "stranger", node.name), Conn("upd", "stranger", node.name)
        collector.up = updates.up = True
        updates.identity = b"stranger"
        for session, no in self._sessions.items():
            node.deliver(collector, _kvset(session, no + 1, [["/a/1"], [b"forged"], None]))
        for lease in self._leases:
            self._no += 1
            node.deliver(collector, _kvset(OWN, self._no, [[], [], {"unlease": lease}]))
        for topic in self._topics:
            node.deliver(updates, [b"\x00" + topic])
        # These are batches of new sessions, with nonsense in them.
        for no in range(3):
            self._no += 1
            node.deliver(collector, _kvset(b"%016d" % self._no, no, [["/a/1"], [b"forged"], None, "more"]))
        peer = node.core.pair.peer
        if peer is not None and peer.server != OWN and node.clock.mono() - peer.heard < HEARD_S:
            # Without a living peer the stranger could pass for it, because only keys can tell the two apart.
            self._poses_as_peer(node)

    def _poses_as_peer(self, node: ServerNode) -> None:
        """Pose as the peer on P+3, with all that a client may know and some things that it may not."""
        core, line = node.core, Conn("peer", "stranger", node.name)
        line.up, line.identity = True, b"stranger"
        at, peer = core.state.proof(), core.pair.peer
        said = {
            **msgpack.unpackb(core.link.state_message()[1]), "server": OWN, "name": "stranger",
            "primary": not core.pair.config.primary, "digest": at.digest ^ 1, "echo": OWN,
        }  # fmt: skip
        for state, number in ((3, at.number + 1000), (4, at.number), (4, 0), (1, at.number)):
            node.deliver(line, [b"STATE", msgpack.packb({**said, "state": state, "number": number})])
        node.deliver(line, [b"CONFIRM", msgpack.packb([at.store, at.number + 5, at.opener, at.digest])])
        node.deliver(line, [b"LEAVE", OWN])
        node.deliver(line, [b"LEAVE", peer.server if peer is not None else b""])
        node.stranger_spoke_at = node.world.time.now


def _kvset(session: bytes, no: int, segment: list[object]) -> Frames:
    return [b"\x02\x03", no.to_bytes(8, "big"), session, b"", msgpack.packb(segment)]
