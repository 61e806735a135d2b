"""Dead letters: messages that can't be handled go to the group's dead topic, so that others go on (docs/topics.md).

A letter goes there in the record that acknowledges its message. The pair may refuse it, as when the dead topic is full.
Then the other messages of the batch are acknowledged, and the consumer takes no new batch. It sends that letter again
alone, after pauses that grow. A warning before each pause names the message and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from ..errors import Refused
from .batch import Batch
from .dead_letter_format import Letters, portions, slots_for

# A number above every offset.
ALL = 1 << 62
# The pause before a refused letter is sent again. Each pause is twice as long as the last one.
PAUSE_S, PAUSE_MAX_S = 0.5, 30.0
# A refusal with one of these codes says that other members have the messages, or that the group or topic is gone.
LOST = ("fenced", "lease", "member", "group", "topic")
_REMEDIES = {
    "full": "make room there, or remove it",
    "access": "grant its consumers write on /.chp/topics/{}/",
    "space": "its server has no room on its disk",
}


def put_aside(batch: Batch, stopped: Event, warn: Callable[[str], object], *, patient: bool = True) -> bool:
    """Put the rejected messages of a batch aside, acknowledge it up to the last of them, and return True.

    Return False if other members have the messages by now, or if `stopped` was set. If the pair refuses a letter, send
    it again if `patient`, and raise the refusal otherwise.
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
            # The dead topic may have room for some of them.
            alone = True
        else:
            warn(f"{refusal(batch, part[0], error)}; it is tried again in {pause:g} s")
            _rest(batch, letters, stopped)
            if stopped.wait(pause):
                return False
            pause = min(2 * pause, PAUSE_MAX_S)
    return True


def refusal(batch: Batch, offset: int, error: Refused) -> Refused:
    """Return an error that names the message and the remedy."""
    remedy = _REMEDIES.get(error.code, "or `reset` the group to behind it").format(batch.dead_topic)
    where = f"message {offset} of topic {batch.whose[0]} can't be put aside in topic {batch.dead_topic}"
    return Refused(f"{where}: {error}; {remedy}", error.code, error.detail)


def _rest(batch: Batch, letters: Letters, stopped: Event) -> None:
    """Acknowledge the handled messages: slots with letters only up to the first letter, other slots completely."""
    batch.hold(slots_for(letters), min(letters))
    if not batch.is_done and batch.upto(ALL).moves():
        _sent(batch, ALL, stopped)
    batch.hold(0, 0)


def _sent(batch: Batch, upto: int, stopped: Event) -> Exception | None:
    """Acknowledge a batch below an offset, and wait. Return the error if that failed, or None."""
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
