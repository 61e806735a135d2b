"""Keys and subtrees: their form, and which key belongs to which subtree (SPEC.md, sections 3 and 12).

A key is 1 to 1,024 bytes of UTF-8 whose first character is not a control character, and not one of the three words
that are commands on the wire. A subtree is empty (everything) or begins and ends with a slash; it is a plain prefix.

The reserved keys of CHP/2 begin with STX. One comparison therefore keeps empty and reserved keys out of a whole
column: `min(keys) >= " "`.
"""

from functools import lru_cache
from hashlib import sha256

from .errors import BadKey, BadSubtree
from .limits import DEFAULT

STX, ETX = b"\x02", b"\x03"
RESERVED_KEY = STX + ETX
# In a KVSET of CHP/2, this value says that the client holds no batch before this one, and so can send none of them
# again.
OLDEST_HELD = b"\1"
COMMANDS = frozenset({"ICANHAZ?", "KTHXBAI", "HUGZ"})
# The first bytes of a session name its client; the last 4 count up when the client opens another session.
CLIENT_BYTES = 12
SESSION_LAST = (1 << 32) - 1


def check_key(key: object) -> str:
    """Return the key itself, or raise `BadKey` that says what is wrong and what to do."""
    if type(key) is not str:
        raise BadKey(f"a key is text, not {type(key).__name__} ({key!r:.60}); decode or format it first")
    if not key:
        raise BadKey("the key is empty; a key has 1 to 1024 bytes")
    if key[0] < " ":
        raise BadKey(f"key {key!r:.60} begins with a control character, which is reserved; begin it with '/'")
    if key in COMMANDS:
        raise BadKey(f"key {key!r} is a command of the protocol; use another, such as {'/' + key!r}")
    if len(key) * 4 > DEFAULT.key_bytes_max or not key.isascii():
        _check_encoding(key)
    return key


def _check_encoding(key: str) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise BadKey(f"key {key!r:.60} can't be encoded as UTF-8 (a lone surrogate); mend it first") from None
    if size > DEFAULT.key_bytes_max:
        raise BadKey(f"key {key[:40]!r}... has {size} bytes; at most {DEFAULT.key_bytes_max} are allowed")


def decode_key(frame: bytes) -> str:
    """Return the checked key in a frame."""
    try:
        return check_key(frame.decode())
    except UnicodeDecodeError:
        raise BadKey(f"key {frame[:40]!r} is not UTF-8; encode keys as UTF-8") from None


def check_column(keys: list[str], known: dict[str, bytes]) -> None:
    """Check a column of keys with passes in C; only keys that are not plain and not in `known` are checked one by one.

    Raise `BadKey` for the first key that can't be used.
    """
    try:
        joined = "".join(keys)
        plain = not keys or (
            min(keys) >= " "
            and joined.isascii()
            and COMMANDS.isdisjoint(keys)
            and (len(joined) <= DEFAULT.key_bytes_max or max(map(len, keys)) <= DEFAULT.key_bytes_max)
        )
    except TypeError:
        plain = False
    if not plain:
        for key in keys:
            if key not in known:
                check_key(key)


def check_decoded(keys: list[str]) -> None:
    """Check the keys of a decoded segment; `batch.decode_segment` made sure that they are UTF-8 and not too long."""
    if keys and (min(keys) < " " or not COMMANDS.isdisjoint(keys)):
        for key in keys:
            check_key(key)


def check_subtree(subtree: object) -> str:
    """Return the subtree itself, or raise `BadSubtree` that says what is wrong and what to do."""
    if type(subtree) is not str:
        raise BadSubtree(f"a subtree is text, not {type(subtree).__name__}; give '' for everything or '/name/'")
    if subtree and not (subtree[0] == "/" and subtree[-1] == "/"):
        raise BadSubtree(
            f"subtree {subtree!r:.60} must be '' or begin and end with '/'; try {_with_slashes(subtree)!r}"
        )
    if any(c < " " for c in subtree):
        raise BadSubtree(f"subtree {subtree!r:.60} has a control character; leave it out")
    try:
        size = len(subtree.encode())
    except UnicodeEncodeError:
        raise BadSubtree(f"subtree {subtree!r:.60} can't be encoded as UTF-8; mend it first") from None
    if size > DEFAULT.subtree_bytes_max:
        raise BadSubtree(f"subtree {subtree[:40]!r}... has {size} bytes; at most {DEFAULT.subtree_bytes_max}")
    return subtree


def _with_slashes(subtree: str) -> str:
    return "/" + subtree.strip("/")[:60] + "/"


def channel_topic(subtree: str) -> bytes:
    """Return the topic of a subtree's batches: STX subtree ETX, so that no topic is a prefix of another."""
    return STX + subtree.encode() + ETX


def public_client(client: bytes) -> bytes:
    """Return the public form of the first part of a session: it names the client, but does not let others act as it."""
    return sha256(b"chp session" + client).digest()[:CLIENT_BYTES]


# The public ids of at most this many sessions are remembered, for the clients that write now. Each id takes 230 bytes,
# and saves two microseconds for each KVSET.
PUBLIC_MAX = 8192


@lru_cache(maxsize=PUBLIC_MAX)
def public_session(session: bytes) -> bytes:
    """Return the public id of a session, which stands for it everywhere but in a KVSET (SPEC.md, section 14)."""
    return public_client(session[:CLIENT_BYTES]) + session[CLIENT_BYTES:]


def next_session(session: bytes) -> bytes:
    """Return the session after another one: the count goes up by one; after the last count, a new client begins.

    The new client is secret, too: its bytes are a hash of the former client's.
    """
    client, count = session[:CLIENT_BYTES], int.from_bytes(session[CLIENT_BYTES:])
    if count == SESSION_LAST:
        return sha256(b"chp next client" + client).digest()[:CLIENT_BYTES] + bytes(4)
    return client + (count + 1).to_bytes(4)


def session_topic(session: bytes) -> bytes:
    """Return the topic of one client's acknowledgements, by the public id of its session."""
    return STX + b"@" + session.hex().encode() + ETX


def topic_subtree(topic: bytes) -> str | None:
    """Return the subtree that a channel topic names, or None if the topic is something else."""
    if len(topic) < 2 or topic[:1] != STX or topic[-1:] != ETX:
        return None
    try:
        return check_subtree(topic[1:-1].decode())
    except (BadSubtree, UnicodeDecodeError):
        return None
