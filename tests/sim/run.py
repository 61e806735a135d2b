"""The runner of plans: it runs a seed or its commands, and makes a failing list of commands shorter."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .schedule import Plan, plan
from .world import World


@dataclass
class Result:
    """The result of a run."""

    seed: int
    temper: str
    error: str = ""
    lines: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    acks: int = 0
    compared: int = 0
    events: int = 0
    # The virtual time that the run took.
    seconds: float = 0.0


def world_of(a_plan: Plan, *, tracing: bool) -> World:
    """Return the world in which a plan begins."""
    world = World(a_plan.seed, random_delays=True, tracing=tracing)
    world.gentle = a_plan.temper == "gentle"
    if a_plan.lingering_sets:
        world.queues_while_down.add("set")
    sizes = {"sync_chunk_items": a_plan.chunk_items, "part_bytes": a_plan.part_bytes}
    sizes["ending_keys_max"] = sizes["gather_items_max"] = a_plan.ending_keys
    sizes["pending_slice_bytes"] = a_plan.slice_bytes
    # These are drawn apart from the plan, so that a seed has the plan that it always had.
    chance = random.Random(~a_plan.seed)
    sizes["small_set_bytes"], world.set_byte_s = chance.choice((0, 60, 4096)), chance.choice((0.0, 1e-5, 1e-4))
    if a_plan.late:
        sizes |= {"deferred_items_min": 0, "deferred_slice_items": 1}
    world.limits = replace(world.limits, log_records_max=a_plan.log_records, **sizes)
    for node in world.servers:
        node.disk.snapshot_every = a_plan.snapshot_every
    return world


def run_plan(a_plan: Plan, *, tracing: bool = False, prepare: Callable[[World], None] | None = None) -> Result:
    """Perform the commands of a plan. The result has the error that a checker found, if any."""
    world = world_of(a_plan, tracing=tracing)
    if prepare is not None:
        prepare(world)
    result = Result(a_plan.seed, a_plan.temper, commands=a_plan.commands)
    try:
        for command in a_plan.commands:
            world.trace(f"\n{command}\n----") if tracing else None
            world.do(command)
    except AssertionError as error:
        result.error = str(error) or traceback.format_exc(limit=-2)
    except Exception:
        result.error = traceback.format_exc(limit=-4)
    result.lines, result.acks, result.compared = world.lines, world.checks.acks, world.checks.compared
    result.events, result.seconds = world.time.done, world.time.now
    return result


def run_seed(seed: int, *, tracing: bool = False) -> Result:
    """Run the plan of one seed."""
    return run_plan(plan(seed), tracing=tracing)


def shrink(a_plan: Plan, rounds: int = 4, fails: Callable[[Plan], bool] | None = None) -> Plan:
    """Return a shorter plan that still fails in the same way."""
    wanted = _kind(run_plan(a_plan).error)
    same = fails or (lambda p: _kind(run_plan(p).error) == wanted)
    commands = list(a_plan.commands)
    size = max(1, len(commands) // 4)
    for _ in range(rounds * 8):
        i, shorter = 0, False
        while i < len(commands):
            trial = commands[:i] + commands[i + size :]
            if same(replace(a_plan, commands=trial)):
                commands, shorter = trial, True
            else:
                i += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return replace(a_plan, commands=commands)


def _kind(error: str) -> str:
    """Return the words of an error without numbers and names. A shorter plan must fail with the same words."""
    words = [word for word in error.split() if word.isalpha() and word.islower()]
    return " ".join(words[:12])
