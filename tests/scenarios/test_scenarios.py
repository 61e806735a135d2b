"""Scenario files: commands, `----`, and the trace they cause; `pytest --rewrite` records the traces anew.

A file begins with prose, and blocks of commands follow. The commands are those of tests/sim/world.py. They drive the
production code in a world in which nothing takes time, and nothing moves unless a command says so. All checkers watch.
A file whose commands begin with `seed N ...` was printed by the simulator, and has the delays of that seed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.run import world_of
from tests.sim.schedule import Plan
from tests.sim.world import World

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))
RULE = "----"


def parse(text: str) -> tuple[str, list[list[str]]]:
    """Return the prose, and the commands of each block."""
    prose, *blocks = text.split("\n\n")
    while blocks and f"\n{RULE}" not in "\n" + blocks[0]:
        prose += "\n\n" + blocks.pop(0)
    return prose, [
        [line for line in block.split(f"{RULE}")[0].splitlines() if line] for block in blocks if block.strip()
    ]


def play(text: str) -> str:
    """Return the text with the commands of a scenario, and with the trace that they cause now."""
    prose, blocks = parse(text)
    world = World()
    out = [prose]
    for commands in blocks:
        world.lines.clear()
        for command in commands:
            if command.startswith("seed "):
                world = world_of(Plan.of(command), tracing=True)
            else:
                world.do(command)
        out.append("\n".join([*commands, RULE, *world.lines]).rstrip())
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    played = play(text)
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    else:
        assert played == text, f"{path.name} goes differently; review, then record it: pytest --rewrite {path}"


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 11


def test_a_wrong_trace_is_noticed() -> None:
    text = FILES[0].read_text()
    assert play(text.replace("ACTIVE", "PASSIVE")) != text.replace("ACTIVE", "PASSIVE")
