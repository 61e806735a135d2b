"""What a Clone may raise besides the input errors of `chp.errors`, each naming the thing and the remedy.

    Closed      the Clone has been closed                  Full      the window of unacknowledged sets is full
    Forked      used in a child of the process it lives in  Lagging   a watcher, or the Clone, fell too far behind
    Refused     the server took none of a batch of sets, or answers a question with no
    Conflict    ... because a key's revision was another
    Fenced      ... because what it acknowledges is not the consumer's any more
    NotRetained the log of the server does not reach back to where a watch, or a feed, is to begin
    NoSuchTopic, NoSuchGroup, AlreadyThere  ... because there is no topic or group of that name, or there is one
    NotHeld     a `BadKey` and a KeyError: a key that is read lies outside what the Clone holds
    GoneMeanwhile  a KeyError of a Clone, where the key may have gone during an iteration
    Unanswered  no server answered a question, or not to its end

A wait that runs out raises the built-in `TimeoutError`, which says what it waited for and how the servers look.
"""

from __future__ import annotations

from typing import Any

from chp.errors import BadKey, ChpError
from chp.numbers import Revision, describe


class GoneMeanwhile(KeyError):
    """A key is not there, and an iteration over the Clone began a moment ago: the key may have gone meanwhile."""

    def __str__(self) -> str:
        return f"{self.args[0]!r} is not there; if it went while you iterated, use clone.snapshot()"


class NotHeld(BadKey, KeyError):
    """A Clone was asked for a key that lies outside its subtrees, so it can't tell whether the servers have it."""

    __str__ = ChpError.__str__


def outside(key: str, subtrees: tuple[str, ...]) -> NotHeld:
    """Return the error for reading a key outside the subtrees, of which a Clone that only writes has none."""
    held = f"holds ({', '.join(map(repr, subtrees))})" if subtrees else "holds: it only writes"
    return NotHeld(f"key {key!r:.80} is outside what this Clone {held}; read it with a Clone that holds it")


class Closed(ChpError):
    """The Clone is closed: what it held can still be read, but nothing can be set."""


class Forked(ChpError):
    """A Clone was used in a forked child, where its agent does not run."""


class Full(ChpError):
    """The window of unacknowledged sets is full and `on_full` is "raise"."""


class Lagging(ChpError):
    """A reader is further behind than it allowed itself to be."""


class NotRetained(ChpError):
    """The records after `after` can't be had; `oldest` is the oldest number the active's log follows on, if known."""

    def __init__(self, after: int, oldest: int | None) -> None:
        known = f"; its log begins after {describe(oldest)}" if oldest else ""
        super().__init__(
            f"the records after {describe(after)} are not retained, or are no part of this store's history{known}; "
            "begin anew from a snapshot, and let the server keep more (--retain-bytes, --retain-s)"
        )
        self.after = Revision(after)
        self.oldest = None if oldest is None else Revision(oldest)


class Refused(ChpError):
    """The server took nothing of the batch, or won't answer; `code` is the protocol's word for why, `detail` says more.

    With the code `parted` something of it may be set: two servers were active, and others wrote some of its keys. Where
    one server was asked, `server` says which.
    """

    def __init__(self, text: str, code: str = "", detail: Any = None, server: str = "") -> None:
        super().__init__(f"{server}: {text}" if server else text)
        self.text = text
        self.code = code
        self.detail = detail
        self.server = server


class Unanswered(ChpError):
    """No server answered a question, or not to its end."""


class NoSuchTopic(Refused):
    """There is no topic of that name."""


class NoSuchGroup(Refused):
    """There is no group of that name."""


class AlreadyThere(Refused):
    """What was to be made is there."""


class Conflict(Refused):
    """A conditional set found another revision; `revisions` are the present ones (0: the key is absent).

    With the code `parted` the set may still be done, if nobody writes these keys before the other server is back.
    """

    @property
    def revisions(self) -> dict[str, Revision]:
        """The present revision of each key whose condition failed."""
        found = self.detail.items() if isinstance(self.detail, dict) else ()
        return {key: Revision(revision) for key, revision in found if isinstance(revision, int)}


class Fenced(Refused):
    """A batch acknowledges messages that are somebody else's by now, or acknowledged; nothing of it was done.

    `detail` tells what differed: topic, group, whether the consumer is a `member`, the offset that it went on `from`,
    and `at`: where the slots are, and whether they are its own.
    """


def _fenced(detail: object) -> Fenced:
    told = detail if isinstance(detail, dict) else {}
    at = [each for each in told.get("at", ()) if isinstance(each, list) and len(each) == 3]
    if told.get("member") is False:
        why = "this consumer was taken for gone, or the group begun anew, and they are given again"
    elif any(own for _, _, own in at):
        why = "they are acknowledged already" if at and at[0][1] > told.get("from", 0) else "they are to come again"
    else:
        why = "others have its messages by now"
    where = f" of group {told.get('group')} of topic {told.get('topic')}" if told else ""
    return Fenced(f"nothing was done: the messages{where} from {told.get('from', 'there')} on: {why}", "fenced", detail)


def refusal(code: str, detail: object) -> Refused:
    """The error for a REFUSED."""
    if code == "fenced":
        return _fenced(detail)
    conditions = code == "parted" and isinstance(detail, dict)
    if code == "revision" or conditions:
        found = list(Conflict("", code, detail).revisions.items())[:4]
        shown = ", ".join(f"{key!r} is {f'at {at}' if at else 'not there'}" for key, at in found) or detail
        why = "the revision named is another active server's, which may still hand it over" if conditions else ""
        return Conflict(f"{why or 'nothing was set'}: {shown}; read the entry again and retry", code, detail)
    return Refused(f"the server refused the batch ({code}): {detail}", code, detail)
