"""The errors that a Clone may raise, in addition to those of `chp.errors`. Each names the problem and the remedy.

    Closed         the Clone has been closed
    Forked         the Clone is used in a child of the process in which it was made
    Full           the window of unacknowledged sets is full
    Lagging        a watch, or the Clone, fell too far behind
    NotRetained    the log of the server begins after the place where a watch or a feed is to begin
    Unanswered     no server answered a question completely
    NotHeld        a BadKey and a KeyError: a key that is read lies outside the subtrees of the Clone
    GoneMeanwhile  a KeyError during an iteration over a Clone: the key may have been deleted
    Refused        the server took nothing of a batch of sets, or refused to answer a question
    Conflict       a Refused: a key had another revision
    Fenced         a Refused: the batch acknowledges messages that the consumer does not have any more
    NoSuchTopic, NoSuchGroup, NoSuchMessage  a Refused: the topic, group or scheduled message does not exist
    AlreadyThere   a Refused: the topic, group or scheduled message exists already

A wait that runs out of time raises the built-in `TimeoutError`. It tells what was waited for, and the state of the
servers.
"""

from __future__ import annotations

from typing import Any

from chp.errors import BadKey, ChpError
from chp.numbers import Revision, describe


class GoneMeanwhile(KeyError):
    """The error for an absent key soon after an iteration over the Clone began. The key may have been deleted since."""

    def __str__(self) -> str:
        return f"{self.args[0]!r} is not there; if it went while you iterated, use clone.snapshot()"


class NotHeld(BadKey, KeyError):
    """The error for a read of a key outside a Clone's subtrees. The Clone can't tell whether the servers have it."""

    __str__ = ChpError.__str__


def outside(key: str, subtrees: tuple[str, ...]) -> NotHeld:
    """Return the error for a read of a key outside the subtrees. A Clone that only writes has no subtrees."""
    held = f"holds ({', '.join(map(repr, subtrees))})" if subtrees else "holds: it only writes"
    return NotHeld(f"key {key!r:.80} is outside what this Clone {held}; read it with a Clone that holds it")


class Closed(ChpError):
    """The error of a closed Clone. Its copy can still be read, but nothing can be set."""


class Forked(ChpError):
    """The error of a Clone in a forked child process, where its agent does not run."""


class Full(ChpError):
    """The error for a full window of unacknowledged sets, if `on_full` is "raise"."""


class Lagging(ChpError):
    """The error for a reader that is further behind than its limit. `text` is the message without the remedy."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(f"{text}; {remedy}" if remedy else text)
        self.text = text


class NotRetained(ChpError):
    """The error for records after `after` that the server does not have.

    `oldest` is the number after which the active's log begins, if it is known.
    """

    def __init__(self, after: int, oldest: int | None) -> None:
        known = f"; its log begins after {describe(oldest)}" if oldest else ""
        super().__init__(
            f"the records after {describe(after)} are not retained, or are no part of this store's history{known}; "
            "begin anew from a snapshot, and let the server keep more (--retain-bytes and --retain-s; with "
            "--store memory: --retain-memory-bytes)"
        )
        self.after = Revision(after)
        self.oldest = None if oldest is None else Revision(oldest)


class Refused(ChpError):
    """The error for a batch that the server did not take, or for a question that it does not answer.

    `code` is the protocol's word for the reason, and `detail` has more. With the code `parted` a part of the batch may
    be set: two servers were active, and other clients wrote some of its keys. `server` names the server if only one was
    asked.
    """

    def __init__(self, text: str, code: str = "", detail: Any = None, server: str = "") -> None:
        super().__init__(f"{server}: {text}" if server else text)
        self.text = text
        self.code = code
        self.detail = detail
        self.server = server


class Unanswered(ChpError):
    """The error for a question that no server answered completely."""


class NoSuchTopic(Refused):
    """The error for a topic that does not exist."""


class NoSuchGroup(Refused):
    """The error for a group that does not exist, or that began behind the message that it should consume."""


class NoSuchMessage(Refused):
    """The error for a scheduled message that does not exist: it was published, cancelled or dropped, or never made."""


class AlreadyThere(Refused):
    """The error for a topic, group or scheduled message that exists already."""


class Conflict(Refused):
    """The error for a conditional set that found another revision.

    `revisions` has the present ones (0: the key is absent). With the code `parted` the set may still be done, if no
    client writes these keys before the other server is back.
    """

    @property
    def revisions(self) -> dict[str, Revision]:
        """The present revision of each key whose condition failed."""
        found = self.detail.items() if isinstance(self.detail, dict) else ()
        return {key: Revision(revision) for key, revision in found if isinstance(revision, int)}


class Fenced(Refused):
    """The error for an acknowledgement of messages that another consumer has by now, or that are acknowledged.

    Nothing of the batch was done. `detail` tells what differed: the topic, the group, whether the consumer is a
    `member`, the offset that the acknowledgement continues `from`, and `at`. `at` has the position of each slot, and
    whether the consumer has that slot.
    """


def _fenced(detail: object) -> Fenced:
    told = detail if isinstance(detail, dict) else {}
    at = [each for each in told.get("at", ()) if isinstance(each, list) and len(each) == 3]
    if told.get("history") is False:
        why = "they came from a server whose history parted from the pair's, and they are given again"
    elif told.get("member") is False:
        why = "the group took this consumer for gone or began anew, and they are given again"
    elif any(own for _, _, own in at):
        why = "they are acknowledged already" if at and at[0][1] > told.get("from", 0) else "they will come again"
    else:
        why = "other consumers have them by now"
    where = f" of group {told.get('group')} of topic {told.get('topic')}" if told else ""
    start = told.get("from", "there")
    return Fenced(f"nothing was done with the messages{where} from {start} on: {why}", "fenced", detail)


def refusal(code: str, detail: object) -> Refused:
    """Return the error for a server's REFUSED message, from its code and its detail."""
    if code == "fenced":
        return _fenced(detail)
    conditions = code == "parted" and isinstance(detail, dict)
    if code == "revision" or conditions:
        found = list(Conflict("", code, detail).revisions.items())[:4]
        shown = ", ".join(f"{key!r} is {f'at {at}' if at else 'not there'}" for key, at in found) or detail
        why = "the named revision is from another active server, which may still hand it over" if conditions else ""
        return Conflict(f"{why or 'nothing was set'}: {shown}; read the entry again and retry", code, detail)
    if code == "topic":
        return NoSuchTopic(f"nothing was done: {detail}", code, detail)
    # Servers also refuse messages with this code if a topic was made with `require_group`. That text is another one.
    if code == "group" and " has no group " in str(detail):
        return NoSuchGroup(f"nothing was done: {detail}", code, detail)
    kind = {"there": AlreadyThere, "name": NoSuchMessage}.get(code, Refused)
    return kind(f"the server refused the batch ({code}): {detail}", code, detail)
