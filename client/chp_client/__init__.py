"""The client of a replicated dictionary: `Clone` as a mapping, `AsyncClone` for asyncio.

from chp_client import Clone
with Clone(["tcp://a:5556", "tcp://b:5566"], subtree="/rates/") as clone:
    clone["/rates/EUR/USD"] = b"1.0832"

clone    the mapping and its variants       agent    the thread that owns the sockets, with watches, tickets and leases
core     the decisions, without any I/O     codecs   the forms of values: bytes, text, JSON, msgpack
"""

from typing import TYPE_CHECKING, Any

from chp.errors import BadFrame, BadInput, BadKey, BadSubtree, BadTtl, BadValue, ChpError
from chp.numbers import Revision

from . import renamed
from .agent.aioparts import AsyncLease, AsyncWatch
from .agent.changes import Change, Changes
from .agent.client_info import package_version
from .agent.lease import Lease
from .agent.measured import Metrics
from .agent.tickets import Ticket
from .agent.watch import Watch
from .agent.writer import Writer
from .clientfile import ClientFile
from .clone.aio import AsyncClone
from .clone.clone import Clone
from .clone.health import Check
from .clone.mapping import Entry
from .codecs import Codec
from .core.events import Ack, State
from .errors import (
    AlreadyThere,
    Closed,
    Conflict,
    Fenced,
    Forked,
    Full,
    Lagging,
    NoSuchGroup,
    NoSuchMessage,
    NoSuchTopic,
    NotRetained,
    Refused,
    Unanswered,
)
from .mounted.aio import MountedAsyncClone
from .mounted.clone import MountedClone
from .port.history import Version
from .signatures import shorten
from .topics.aioconsumer import AsyncBatch, AsyncConsumer, AsyncTransaction
from .topics.aiotopic import AsyncTopic
from .topics.batch import Batch
from .topics.consumer import Consumer
from .topics.reader import Message, MessageBatch
from .topics.schedule import Scheduled, ScheduledMessage
from .topics.topic import Topic
from .topics.transaction import Transaction

# The installed version, or "". `__getattr__` looks it up at the first use.
__version__: str

__all__ = [
    "Ack",
    "AlreadyThere",
    "AsyncBatch",
    "AsyncClone",
    "AsyncConsumer",
    "AsyncLease",
    "AsyncTopic",
    "AsyncTransaction",
    "AsyncWatch",
    "BadFrame",
    "BadInput",
    "BadKey",
    "BadSubtree",
    "BadTtl",
    "BadValue",
    "Batch",
    "Change",
    "Changes",
    "Check",
    "ChpError",
    "ClientFile",
    "Clone",
    "Closed",
    "Codec",
    "Conflict",
    "Consumer",
    "Entry",
    "Fenced",
    "Forked",
    "Full",
    "Lagging",
    "Lease",
    "Message",
    "MessageBatch",
    "Metrics",
    "NoSuchGroup",
    "NoSuchMessage",
    "NoSuchTopic",
    "NotRetained",
    "Refused",
    "Revision",
    "Scheduled",
    "ScheduledMessage",
    "State",
    "Ticket",
    "Topic",
    "Transaction",
    "Unanswered",
    "Version",
    "Watch",
]  # fmt: skip


shorten([Clone, AsyncClone, Lease, AsyncLease, Watch, AsyncWatch, Ticket, Topic, AsyncTopic, ClientFile, Consumer])
# `clone.set` of a Clone is the method `set` of its `Writer`.
shorten([Writer])
# `Clone` and `AsyncClone` make these classes for several pairs.
shorten([MountedClone, MountedAsyncClone])


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__all__", "__doc__", "__name__", "__file__", "__path__", "__version__"]


# A type checker that saw this function would believe that every name exists here.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return `__version__`. Raise an error for any other name. For an old name, the error tells the new one."""
        if name == "__version__":
            return package_version()
        return renamed.told(name, {"LATEST": 'start="end"'}, __name__)
