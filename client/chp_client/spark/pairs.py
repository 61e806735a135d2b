"""The pairs of servers that a job reads and writes: one pair, or with mounts each pair that has keys of its subtree.

    places_of(options, prefix)     the places of a read: for each pair its servers, and the keys that are read there
    pairs_of(options)              the servers of each pair that a write may go to
    pair_of(servers, written)      the servers of the one pair that all parts of a write went to

Each pair has numbers of its own. So a read of several pairs has one number for each pair, and a commit goes to
one pair.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..clientfile import ClientFile
from ..mount_table import ROOT, Mounts, one
from .values.columns import Updates

WHAT = "a write of Spark"


class Place(NamedTuple):
    """The keys of a read that one pair has: those that begin with `prefix`, but not those of the mounts `inside`."""

    servers: Sequence[str]
    subtree: str
    prefix: str
    inside: tuple[str, ...] = ()

    def own(self, updates: Updates) -> Updates:
        """Return the updates whose keys belong to this pair.

        The pair may still hold keys of a mount in `inside`, from before that mount moved to another pair.
        """
        if not self.inside:
            return updates
        keys = pa.array(updates.keys, pa.string()) if isinstance(updates.keys, list) else updates.keys
        foreign = np.zeros(len(keys), np.bool_)
        for mount in self.inside:
            foreign |= pc.starts_with(keys, mount).to_numpy(zero_copy_only=False)
        return updates.take(np.flatnonzero(~foreign).tolist()) if foreign.any() else updates


def readers_of(options: Mapping[str, Any]) -> Sequence[str]:
    """Return the servers that a read asks: the replicas that the options name, or else the servers of the pair."""
    readers: Sequence[str] = options["replicas"] or options["servers"]
    return readers


def places_of(options: Mapping[str, Any], prefix: str) -> list[Place]:
    """Return the places of the keys that begin with `prefix`, in the subtree that the options name.

    With several replicas, each read begins with a random one. Its tasks ask that replica first: it has the image.
    """
    servers, subtree = options["servers"], options["subtree"]
    if not isinstance(servers, Mounts):
        readers = readers_of(options)
        return [Place(_turned(readers) if options["replicas"] else readers, subtree, prefix)]
    touched = servers.touched(prefix)
    if not touched:
        # No mount has keys that begin with `prefix`. Spark needs a task, so read the whole subtree.
        # Spark filters the rows.
        prefix, touched = subtree, servers.touched(subtree)
    return [_place(servers, mount, subtree, prefix) for mount in touched]


def _place(mounts: Mounts, mount: str, subtree: str, prefix: str) -> Place:
    inside = tuple(each for each in mounts.nested(mount) if each.startswith(prefix))
    return Place(mounts.servers[mount], _longer(mount, subtree), _longer(mount, prefix), inside)


def _longer(mount: str, prefix: str) -> str:
    """Return the longer of a mount and `prefix`, as both begin the keys to read. The mount "/" counts as empty."""
    return mount if mount != ROOT and mount.startswith(prefix) else prefix


def _turned(servers: Sequence[str]) -> Sequence[str]:
    at = random.randrange(len(servers))
    turned = [*servers[at:], *servers[:at]]
    return servers.only(turned) if isinstance(servers, ClientFile) else turned


def pairs_of(options: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the servers of each pair that a write may have staged rows at."""
    servers = options["servers"]
    if not isinstance(servers, Mounts):
        return [servers]
    return [servers.servers[mount] for mount in servers.split([options["subtree"]])]


def pair_of(servers: Sequence[str] | Mounts, written: Iterable[tuple[str, object]]) -> Sequence[str]:
    """Return the servers of the pair that all parts of a write went to; `written` has the mount and a key of each.

    Raise `BadInput` with two mounts if the parts went to several.
    """
    return servers.servers[one(WHAT, written)] if isinstance(servers, Mounts) else servers
