"""The client of a replicated dictionary: `Clone` as a mapping, `AsyncClone` for asyncio.

from chp_client import Clone
with Clone(["tcp://a:5556", "tcp://b:5566"], subtree="/rates/") as clone:
    clone["/rates/EUR/USD"] = b"1.0832"

clone    the mapping; its parts are reading, writing and worth
agent    the thread that owns the sockets          core    what it decides, pure
watch, changes, tickets, lease, codecs             what their names say
"""

from chp.errors import BadFrame, BadInput, BadKey, BadSubtree, BadTtl, BadValue, ChpError
from chp.numbers import Revision

from .agent.measured import Metrics
from .agent.tickets import Ticket
from .clientfile import ClientFile
from .clone.aio import AsyncClone
from .clone.aioparts import AsyncLease, AsyncWatch
from .clone.changes import Change, Changes
from .clone.clone import Clone
from .clone.lease import Lease
from .clone.reading import Entry
from .clone.watch import Watch
from .clone.worth import Check
from .codecs import Codec
from .core.events import Ack, State
from .errors import AlreadyThere, Closed, Conflict, Forked, Full, Lagging, NoSuchTopic, NotRetained, Refused
from .feed.history import Version
from .topics.aiotopic import AsyncTopic
from .topics.reader import Message, MessageBatch
from .topics.topic import LATEST, Topic

__all__ = [
    "LATEST", "Ack", "AlreadyThere", "AsyncClone", "AsyncLease", "AsyncTopic", "AsyncWatch", "BadFrame", "BadInput",
    "BadKey", "BadSubtree", "BadTtl", "BadValue", "Change", "Changes", "Check", "ChpError", "ClientFile", "Clone",
    "Closed", "Codec", "Conflict", "Entry", "Forked", "Full", "Lagging", "Lease", "Message", "MessageBatch", "Metrics",
    "NoSuchTopic", "NotRetained", "Refused", "Revision", "State", "Ticket", "Topic", "Version", "Watch",
]  # fmt: skip


def __dir__() -> list[str]:
    """What is public."""
    return [*__all__, "__all__", "__doc__", "__name__", "__file__", "__path__"]
