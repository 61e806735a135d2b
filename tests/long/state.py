"""The file in which the rounds of a part are noted. A part that was stopped goes on with the missing rounds."""

from __future__ import annotations

from pathlib import Path

OK, SKIPPED = "ok", "skipped"


def note(file: Path, name: str, said: str = OK) -> None:
    """Note a round, with "ok", "skipped" or what went wrong."""
    with file.open("a") as out:
        out.write(f"{name}\t{' '.join(said.split())}\n")


def noted(file: Path) -> dict[str, str]:
    """Return the last note of each round, by the name of the round."""
    return dict(_notes(file))


def again(file: Path) -> int:
    """Return how many rounds went well after they had failed."""
    return len({name for name, said in _notes(file) if said not in (OK, SKIPPED)} & passed(file))


def _notes(file: Path) -> list[tuple[str, str]]:
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [(name, said) for name, _, said in (line.rpartition("\t") for line in lines)]


def passed(file: Path) -> set[str]:
    """Return the rounds that went well."""
    return {name for name, said in noted(file).items() if said == OK}
