"""Tests that the fingerprint is that of the map, whether it was kept up to date or added up on demand."""

import random

import pytest

from chp.batch import Segment
from chp.hashmap import Hashmap
from chp.keys import channel_topic
from chp.limits import DEFAULT
from chp.numbers import U64_MASK
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates.channels import PublishedChannels

EPOCH = 1 << 48


def segment(rng: random.Random, keys: int) -> Segment:
    """Return a few sets and deletes, with some keys twice."""
    chosen = [f"/{rng.choice('ab')}/{rng.randrange(keys)}" for _ in range(rng.randrange(1, 20))]
    deletes = [i for i in range(len(chosen)) if rng.random() < 0.2]
    values = [b"" if i in deletes else b"%d" % i for i in range(len(chosen))]
    return Segment(chosen, values, {"d": deletes} if deletes else None)


def added_up(hashmap: Hashmap, subtree: str) -> tuple[int, int]:
    """Return the fingerprint by its definition."""
    revisions = [r for k, r in hashmap.revisions.items() if k.startswith(subtree)]
    return len(revisions), sum(revisions) & U64_MASK


@pytest.mark.parametrize("ask_every", [1, 3, 50])
@pytest.mark.parametrize("keys", [5, 1000])
def test_the_fingerprint_of_a_channel_always_matches_the_map(ask_every: int, keys: int) -> None:
    rng = random.Random(keys * ask_every)
    state, channels = ReplicatedState(DEFAULT), PublishedChannels(DEFAULT)
    followed = [channels.subscribe(channel_topic(subtree), state, b"1", 0.0) for subtree in ("", "/a/")]
    revision = EPOCH
    for i in range(400):
        part = segment(rng, keys)
        channels.note(part, part.encode(), revision, state.map)
        state.apply(part, revision, now=0.0)
        revision += len(part.keys)
        if i % ask_every == 0:
            state.map.check()
            for channel in followed:
                assert channel is not None
                assert channel.fingerprint(state.map) == added_up(state.map, channel.subtree)
