"""The table of mounts: which pair of servers has a key, a subtree or a topic. It decides, and opens nothing.

    [mounts]                                        CHP_SERVERS='/=a:5556,b:5566 /rates/=c:5556,d:5566'
    "/"       = ["a:5556", "b:5566"]
    "/rates/" = ["c:5556", "d:5566"]
    [topics]
    "ticks.*" = "/rates/"

The longest prefix wins. The mount "/" has every key that no other mount has, also a key without a slash. A topic
belongs to the mount that `[topics]` names for it, by its whole name or by the longest beginning of it, else to "/". A
dead topic belongs to the mount of its topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Self

from chp import addresses
from chp.errors import BadInput, BadKey, BadSubtree
from chp.keys import check_key, check_subtree
from chp.limits import DEFAULT
from chp.topics import check_topic

ROOT = "/"
_DEAD = ".dead"


class Mounts:
    """The mounts by their prefixes, and the mounts of topics."""

    def __init__(self, servers: Mapping[str, Sequence[str]], topics: Mapping[str, str] | None = None) -> None:
        # The servers of each prefix's pair. They are a `ClientFile` if a client file named them, which has their keys.
        self.servers = dict(servers)
        self.topics = dict(topics or {})
        self._longest = sorted((each for each in self.servers if each != ROOT), key=len, reverse=True)
        self._named = {name: mount for name, mount in self.topics.items() if not name.endswith("*")}
        beginnings = [(name[:-1], mount) for name, mount in self.topics.items() if name.endswith("*")]
        self._beginnings = sorted(beginnings, key=lambda rule: len(rule[0]), reverse=True)

    # -- reading

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the mounts of a text such as `/=a:5556,b:5566 /rates/=c:5556`. Raise ValueError."""
        found: dict[str, list[str]] = {}
        for word in text.split():
            prefix, equals, servers = word.partition("=")
            if not equals:
                raise ValueError(
                    f"has {word!r} without a mount; write /PREFIX/={word}, and a comma between two servers"
                )
            if prefix in found:
                raise ValueError(f"has the mount {prefix!r} twice; name both servers of its pair in one")
            found[prefix] = [each for each in servers.split(",") if each]
        return cls.of_tables(found)

    @classmethod
    def of_tables(cls, mounts: object, topics: object = None) -> Self:
        """Return the mounts of two tables, such as those of a client file. Raise ValueError."""
        if not isinstance(mounts, Mapping) or not mounts:
            raise ValueError('has no mount in its table of mounts; write "/" = ["a:5556", "b:5566"] there')
        if len(mounts) > DEFAULT.mounts_max:
            raise ValueError(
                f"has {len(mounts)} mounts, more than {DEFAULT.mounts_max}; put subtrees of one pair together"
            )
        servers = {_prefix(prefix): _servers(prefix, given) for prefix, given in mounts.items()}
        whose: dict[str, str] = {}
        for prefix, addressed in servers.items():
            for server in addressed:
                if server in whose:
                    raise ValueError(
                        f"has the server {server} in the mounts {whose[server]!r} and {prefix!r}; leave one out"
                    )
                whose[server] = prefix
        return cls(servers, _rules(topics, servers))

    def with_servers(self, named: Callable[[Sequence[str]], Sequence[str]]) -> Self:
        """Return these mounts, with the servers of each replaced by `named(servers)`."""
        return type(self)({prefix: named(servers) for prefix, servers in self.servers.items()}, self.topics)

    # -- deciding

    def find(self, key: str) -> str | None:
        """Return the mount that has a key, or None if no mount has."""
        for prefix in self._longest:
            if key.startswith(prefix):
                return prefix
        return ROOT if ROOT in self.servers else None

    def of_key(self, key: str) -> str:
        """Return the mount that has a key. Raise `BadKey` if no mount has."""
        mount = self.find(check_key(key))
        if mount is not None:
            return mount
        raise BadKey(f"no mount has the key {key!r:.80} ({self}); add the mount '/', which has all other keys")

    def of_keys(self, what: str, keys: Sequence[str]) -> str:
        """Return the one mount that has all these keys, of which there is at least one.

        Raise `BadKey` for a key that no mount has, and `BadInput` with both mounts if the keys are of several. `what`
        is the call that needs one mount. C-level loops check the keys; Python code looks at each key only to refuse it.
        """
        mount = self.of_key(keys[0])
        inside = self.nested(mount)
        try:
            outside = mount != ROOT and not all(map(str.startswith, keys, repeat(mount)))
            if not outside and not (inside and any(map(str.startswith, keys, repeat(inside)))):
                return mount
        except TypeError:
            # One of the keys is no text. `of_key` refuses it below.
            pass
        return one(what, ((self.of_key(key), key) for key in keys))

    def of_topic(self, name: str) -> str:
        """Return the mount that has a topic. Raise `BadInput` if none has."""
        mount = self._of_topic(name)
        if mount not in self.servers:
            raise BadInput(f"no mount has the topic {name!r:.80} ({self}); add the mount '/', or map it in [topics]")
        return mount

    def has_topic(self, mount: str, name: str) -> bool:
        """Return True if a mount has a topic."""
        return self._of_topic(name) == mount

    def _of_topic(self, name: str) -> str:
        if name.endswith(_DEAD):
            # The name is TOPIC.GROUP.dead, and a group may have dots in its name too.
            topic = name.removesuffix(_DEAD).rpartition(".")[0]
            shorter = topic
            while shorter:
                if shorter in self._named:
                    return self._named[shorter]
                shorter = shorter.rpartition(".")[0]
            if topic:
                return self._of_topic(topic)
        if name in self._named:
            return self._named[name]
        return next((mount for beginning, mount in self._beginnings if name.startswith(beginning)), ROOT)

    def touched(self, prefix: str) -> list[str]:
        """Return the mounts that may have keys under a prefix. The mount that has the prefix itself comes first."""
        inside = sorted(each for each in self.servers if each != ROOT and each.startswith(prefix))
        outer = next((each for each in self._longest if prefix.startswith(each)), ROOT)
        return inside if outer in inside or outer not in self.servers else [outer, *inside]

    def split(self, subtrees: Iterable[str]) -> dict[str, list[str]]:
        """Return for each mount the subtrees to hold from it. Raise `BadSubtree` for a subtree that no mount has."""
        found: dict[str, list[str]] = {}
        for subtree in subtrees:
            touched = self.touched(subtree)
            if not touched:
                raise BadSubtree(f"no mount has the subtree {subtree!r:.80} ({self}); add the mount '/'")
            for mount in touched:
                inside = mount != ROOT and mount.startswith(subtree)
                found.setdefault(mount, []).append(mount if inside else subtree)
        return found

    def alone(self, subtree: str) -> Sequence[str]:
        """Return the servers of the only mount that has keys in a subtree. Raise `BadInput` if several have."""
        found = list(self.split([subtree]))
        if len(found) > 1:
            raise BadInput(
                f"the subtree {subtree!r:.80} spans the mounts {found[0]!r} and {found[1]!r} ({self}); "
                "name a subtree of one mount, and do it for each of them"
            )
        return self.servers[found[0]]

    def nested(self, mount: str) -> tuple[str, ...]:
        """Return the mounts inside a mount, whose keys do not belong to it."""
        return tuple(each for each in self._longest if each != mount and (mount == ROOT or each.startswith(mount)))

    def ranges(self, low: str, high: str | None) -> list[tuple[str, str, str | None]]:
        """Return the ranges of keys from `low` on and below `high`, in order, each with its mount.

        No range has keys that no mount has.
        """
        edges = {low}
        for prefix in self._longest:
            edges |= {edge for edge in (prefix, _above(prefix)) if edge > low and (high is None or edge < high)}
        starts = sorted(edges)
        found: list[tuple[str, str, str | None]] = []
        for start, end in zip(starts, [*starts[1:], high], strict=True):
            mount = next((each for each in self._longest if each <= start < _above(each)), ROOT)
            if mount in self.servers:
                found.append((mount, start, end))
        return found

    def __str__(self) -> str:
        return "; ".join(f"{prefix!r} is {','.join(map(_short, servers))}" for prefix, servers in self.servers.items())

    def __repr__(self) -> str:
        return f"<Mounts {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mounts) and (self.servers, self.topics) == (other.servers, other.topics)

    def __hash__(self) -> int:
        return hash(tuple(self.servers))


def is_text(text: str) -> bool:
    """Return True if a text names mounts. No address has an equals sign."""
    return "=" in text and not addresses.is_url(text)


def one(what: str, found: Iterable[tuple[str, object]]) -> str:
    """Return the one mount of some keys or topics. Raise `BadInput` that names two of them if they are of two mounts.

    `found` has pairs of a mount and a key or topic. `what` names the call or object that needs one mount.
    """
    first: tuple[str, object] | None = None
    for mount, thing in found:
        if first is None:
            first = mount, thing
        elif mount != first[0]:
            raise BadInput(
                f"{what} spans two mounts: {first[1]!r:.80} is of {first[0]!r}, and {thing!r:.80} is of {mount!r}; "
                "order and atomicity hold within a mount, so do it for each of them"
            )
    return ROOT if first is None else first[0]


def _above(prefix: str) -> str:
    """Return the lowest text above all keys that begin with a prefix. The prefix ends with "/", and "0" follows "/"."""
    return prefix[:-1] + "0"


def _short(server: str) -> str:
    return server.removeprefix("tcp://")


def _prefix(prefix: Any) -> str:
    try:
        checked = check_subtree(prefix)
    except BadSubtree as error:
        raise ValueError(f"has a mount that can't be one: {error}") from None
    if not checked:
        raise ValueError("has a mount without a prefix; write '/', which has all keys that no other mount has")
    return checked


def _servers(prefix: object, given: object) -> tuple[str, ...]:
    if not isinstance(given, Iterable):
        raise ValueError(f'has the mount {prefix!r} with {given!r:.60}; write a list of servers, such as ["c:5556"]')
    words = given.split(",") if isinstance(given, str) else list(given)
    if not words or words == [""]:
        raise ValueError(f"has the mount {prefix!r} without a server; name one, or the two of its pair")
    if len(words) > DEFAULT.servers_max:
        raise ValueError(
            f"has {len(words)} servers in the mount {prefix!r}, more than {DEFAULT.servers_max}; "
            "name the two of its pair, and replicas"
        )
    found = []
    for word in words:
        if not isinstance(word, str):
            raise ValueError(
                f"has the server {word!r:.80} in the mount {prefix!r}, which is not text; give one such as c:5556"
            )
        try:
            addresses.parse(server := addresses.full(word.strip()))
        except ValueError as error:
            raise ValueError(f"has the server {word!r:.80} in the mount {prefix!r}, which {error}") from None
        if server in found:
            raise ValueError(f"has the server {server} twice in the mount {prefix!r}; name it once")
        found.append(server)
    return tuple(found)


def _rules(topics: object, servers: Mapping[str, object]) -> dict[str, str]:
    if topics is None:
        return {}
    if not isinstance(topics, Mapping):
        raise ValueError('has topics that are no table; write "ticks.*" = "/rates/" below [topics]')
    if len(topics) > DEFAULT.mounted_topics_max:
        raise ValueError(f"maps {len(topics)} topics, more than {DEFAULT.mounted_topics_max}; map beginnings of names")
    for name, mount in topics.items():
        try:
            check_topic(name[:-1] if isinstance(name, str) and len(name) > 1 and name.endswith("*") else name)
        except BadInput as error:
            raise ValueError(f"maps a topic that can't be one: {error}; only a last * stands for any rest") from None
        if not isinstance(mount, str) or mount not in servers:
            known = ", ".join(map(repr, servers))
            raise ValueError(f"maps the topic {name!r} to {mount!r:.80}, which is no mount; the mounts are {known}")
    return dict(topics)
