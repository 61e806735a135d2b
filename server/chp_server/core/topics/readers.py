"""Port P's questions about topics (SPEC.md, section 35).

    ICANHAZ? subtree {id, topic, facts}            what is known of a topic
    ICANHAZ? subtree {id, topics: after}           of all whose names come after `after`, a page of them
    ICANHAZ? subtree {id, topic, after, credit}    its messages from that offset on, and those to come; -1: only those

The answers are of the active. The subtree says nothing here.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from chp import headers
from chp.batch import encode
from chp.errors import BadFrame
from chp.numbers import pack

from ..questions.syncs import reply
from ..standing import Asking, Standing, Vote
from .delivery import Delivery

LISTED_MAX = 500  # in one answer


class Readers:
    """Who asks, and who reads."""

    def __init__(self, here: Standing) -> None:
        self._here = here
        self.delivery = Delivery(here.limits)

    def ask(self, identity: bytes, options: dict[str, Any]) -> Asking:
        """A question."""
        here, request_id = self._here, options["id"]
        yield Vote()
        if not here.serving:
            self._refuse(identity, request_id, "passive", int(here.bstate))
            return
        here.commit()
        if "topics" in options:
            self._list(identity, request_id, options["topics"])
            return
        topic = here.state.topics.by_name.get(options["topic"]) if type(options["topic"]) is str else None
        if topic is None:
            self._refuse(identity, request_id, "topic", f"there is no topic {options['topic']!r:.200}")
        elif options.get("facts") is True:
            self._answer(identity, headers.Reply(request_id, topic.facts()))
        else:
            after, credit = options.get("after", 0), options.get("credit", 8)
            if type(after) is not int or type(credit) is not int or not -1 <= after < 1 << 62 or credit < 1:
                self._refuse(identity, request_id, "bad", "'after' is an offset, or -1, and 'credit' at least 1")
            elif why := self.delivery.open((identity, request_id), topic, after, credit, here.now):
                self._refuse(identity, request_id, "busy", why)

    def _list(self, identity: bytes, request_id: int, after: object) -> None:
        if type(after) is not str:
            raise BadFrame("'topics' is the name after which the list begins, or empty")
        topics = self._here.state.topics.by_name
        names = sorted(name for name in topics if name > after)[:LISTED_MAX]
        self._answer(identity, headers.Reply(request_id, {"topics": [topics[name].facts() for name in names]}))

    def _refuse(self, identity: bytes, request_id: int, code: str, detail: Any) -> None:
        self._answer(identity, headers.Refused(request_id, code, detail))

    def _answer(self, identity: bytes, header: headers.Header) -> None:
        here = self._here
        here.turn.replies.append((identity, [reply(pack(here.state.number), encode(header))]))

    # -- each turn

    def _confirmed(self) -> int | None:
        """The number that the passive has in its journal; None if none is in sync."""
        follower = self._here.follower
        return follower.confirmed if follower is not None and follower.in_sync else None

    def pump(self, blocked: Container[bytes], *, lacks: int) -> None:
        """What readers get now; `lacks`: how many messages are not in our journal, and may be in the peer's."""
        here = self._here
        at, filling = here.state.number, lacks > 0 and here.in_sync()
        found = self.delivery.pump(here.state.topics, blocked, here.now, at, self._confirmed(), filling=filling)
        here.turn.replies += found

    def ready(self, blocked: Container[bytes]) -> bool:
        """Whether somebody could get more at once."""
        return len(self.delivery) > 0 and self.delivery.ready(blocked, self._here.state.topics, self._confirmed())

    def clear(self) -> None:
        """This server serves no more."""
        here = self._here
        here.turn.replies += self.delivery.clear(int(here.bstate))

    def status(self, lacks: int) -> dict[str, int]:
        """For `status`: messages, their bytes, who reads; and how many messages are not in this journal."""
        topics = self._here.state.topics.by_name.values()
        return {
            "topics": len(topics),
            "messages": sum(topic.next - topic.first for topic in topics),
            "bytes": sum(topic.bytes for topic in topics),
            "readers": len(self.delivery),
            "delivered": self.delivery.delivered,
            "missing": lacks,
        }
