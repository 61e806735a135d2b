"""Putting aside: messages that can't be handled go to the group's dead topic, and stop nobody (docs/topics.md).

A letter goes there in the record that acknowledges its message. While the pair refuses it, as the dead topic is full,
say, what was done beside it is acknowledged, and nothing more is taken until it is there: it alone is sent again, with
a growing pause, and each time a warning names the message and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from ..errors import Refused
from .batch import Batch
from .dead_letter_format import Letters, portions, slots_for

ALL = 1 << 62  # above every offset
PAUSE_S, PAUSE_MAX_S = 0.5, 30.0  # before a refused letter is sent again: twice as long each time
LOST = ("fenced", "lease", "member", "group", "topic")  # others have the messages, or nobody is to have them any more
_REMEDIES = {
    "full": "make room there, or remove it",
    "access": "grant its consumers write on /.chp/topics/{}/",
    "space": "its server has no room on its disk",
}


def put_aside(batch: Batch, stopped: Event, warn: Callable[[str], object], *, patient: bool = True) -> bool:
    """Put the rejected messages of a batch aside, and acknowledge it up to the last of them; whether that was done.

    False if others have them by now, or it was `stopped`. What is refused is tried again, unless not `patient`.
    """
    pause, alone, letters = PAUSE_S, False, batch.take_letters()
    while letters:
        part = [min(letters)] if alone else portions(letters)[0]
        batch.put_letters({offset: letters[offset] for offset in part})
        error = _sent(batch, part[-1] + 1, stopped)
        batch.take_letters()
        if error is None:
            letters = {offset: each for offset, each in letters.items() if offset not in part}
            pause, alone = PAUSE_S, False
        elif not isinstance(error, Refused) or error.code in LOST:
            return False
        elif not patient:
            raise refusal(batch, part[0], error)
        elif len(part) > 1:
            alone = True  # there may be room for some of them
        else:
            warn(f"{refusal(batch, part[0], error)}; it is tried again in {pause:g} s")
            _rest(batch, letters, stopped)
            if stopped.wait(pause):
                return False
            pause = min(2 * pause, PAUSE_MAX_S)
    return True


def refusal(batch: Batch, offset: int, error: Refused) -> Refused:
    """The error that names the message, and the remedy."""
    remedy = _REMEDIES.get(error.code, "or `reset` the group to behind it").format(batch.dead_topic)
    where = f"message {offset} of topic {batch.whose[0]} can't be put aside in topic {batch.dead_topic}"
    return Refused(f"{where}: {error}; {remedy}", error.code, error.detail)


def _rest(batch: Batch, letters: Letters, stopped: Event) -> None:
    """Acknowledge what was done: all but the slots of what is put aside, and these up to the first of it."""
    batch.hold(slots_for(letters), min(letters))
    if not batch.is_done and batch.upto(ALL).moves():
        _sent(batch, ALL, stopped)
    batch.hold(0, 0)


def _sent(batch: Batch, upto: int, stopped: Event) -> Exception | None:
    """Acknowledge a batch below an offset, and wait; why that was not done."""
    ticket = batch.upto(upto).done()
    while not ticket.done:
        try:
            ticket.wait(1.0)
        except TimeoutError as error:
            if stopped.is_set():
                return error
        except Refused:
            break
    return ticket.error
