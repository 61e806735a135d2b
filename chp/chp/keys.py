"""Keys and subtrees: what may be one, and which belongs to which (SPEC.md, sections 3 and 12).

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
OLDEST_HELD = b"\1"  # in a KVSET of CHP/2: its client holds no batch before this one, so it can send none again
COMMANDS = frozenset({"ICANHAZ?", "KTHXBAI", "HUGZ"})
CLIENT_BYTES = 12  # of a session: they name its client, and the last 4 count up when it opens another in its place
SESSION_LAST = (1 << 32) - 1


def check_key(key: object) -> str:
    """The key itself, or `BadKey` that says what is wrong and what to do."""
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
    """The key in a frame, checked."""
    try:
        return check_key(frame.decode())
    except UnicodeDecodeError:
        raise BadKey(f"key {frame[:40]!r} is not UTF-8; encode keys as UTF-8") from None


def check_column(keys: list[str], known: dict[str, bytes]) -> None:
    """Check a column of keys with C-level passes; only keys not in `known` and not plain are looked at one by one.

    Raises `BadKey` for the first key that can't be taken.
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
    """As `check_column`, of keys that came in a segment: it is UTF-8, and none is too long (`batch.decode_segment`)."""
    if keys and (min(keys) < " " or not COMMANDS.isdisjoint(keys)):
        for key in keys:
            check_key(key)


def check_subtree(subtree: object) -> str:
    """The subtree itself, or `BadSubtree` that says what is wrong and what to do."""
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
    """The topic on which a subtree's batches are published: STX subtree ETX, so no topic is a prefix of another."""
    return STX + subtree.encode() + ETX


def public_client(client: bytes) -> bytes:
    """What others see of the first part of a session: it names the client, and nobody can set in its name by it."""
    return sha256(b"chp session" + client).digest()[:CLIENT_BYTES]


@lru_cache(maxsize=DEFAULT.sessions_max)
def public_session(session: bytes) -> bytes:
    """The public id of a session, which stands for it everywhere but in a KVSET (SPEC.md, section 14)."""
    return public_client(session[:CLIENT_BYTES]) + session[CLIENT_BYTES:]


def next_session(session: bytes) -> bytes:
    """The session in the place of another: counted up, and after the last one that of a client that nobody guesses."""
    client, count = session[:CLIENT_BYTES], int.from_bytes(session[CLIENT_BYTES:])
    if count == SESSION_LAST:
        return sha256(b"chp next client" + client).digest()[:CLIENT_BYTES] + bytes(4)
    return client + (count + 1).to_bytes(4)


def session_topic(session: bytes) -> bytes:
    """The topic of one client's acknowledgements, by the public id of its session."""
    return STX + b"@" + session.hex().encode() + ETX


def topic_subtree(topic: bytes) -> str | None:
    """The subtree a channel topic names, or None if the topic is something else."""
    if len(topic) < 2 or topic[:1] != STX or topic[-1:] != ETX:
        return None
    try:
        return check_subtree(topic[1:-1].decode())
    except (BadSubtree, UnicodeDecodeError):
        return None
