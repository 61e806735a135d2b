"""What the core has to tell an operator, as lines of the log; what others can make it say is told now and then only."""

from __future__ import annotations

from ..core.pair.meeting import EVENTS
from ..core.turn import Fact
from ..logs import Log

SAID_BY_OTHERS = frozenset(  # what whoever reaches P+3 can make this server say, as often as they like
    {
        "denied", "peer", "peer left", "settings differ", "a stranger on the peer's port", "catching_up",
        "histories parted", "the passive differs", *EVENTS.values(),
    }
)  # fmt: skip


def log_fact(log: Log, fact: Fact) -> None:
    """Write it."""
    if fact.level == "audit":
        return
    if fact.event == "garbage":
        log.limited("garbage on the " + str(fact.fields.pop("port")) + " port", **fact.fields)
    elif fact.event in SAID_BY_OTHERS:
        log.limited(fact.event, fact.level, **fact.fields)
    elif fact.level == "warning":
        log.warning(fact.event, **fact.fields)
    else:
        log.info(fact.event, **fact.fields)
