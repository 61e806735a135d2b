"""Run long proofs, one part or all in turn: `python -m tests.long [PART ...] [--list] [--report]`.

Each run of a part appends a line to tests/long.jsonl, which is committed: the part, the commit, whether the tree
differed from it, the result, how many rounds went well, and the names of those that did not.

    green     All rounds went well.
    red       A round failed. The exit code is 1, and artifacts/long/PART.log has the output.
    stopped   The time was over, or the run was interrupted. The next run of the part goes on where this one was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .parts import PARTS, Part
from .report import report
from .state import OK, SKIPPED, noted

ROOT = Path(__file__).parents[2]
LINES, PLACE = ROOT / "tests/long.jsonl", ROOT / "artifacts/long"
# A part that is stopped has this time to end its processes.
LEAVE_S = 60.0
FAILED_MAX = 20


def git(*words: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


class Runner:
    """The runner of parts, with the commit and the differences of its tree."""

    def __init__(self, place: Path = PLACE, lines: Path = LINES) -> None:
        self._place, self._lines = place, lines
        self.commit = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "--", ".", ":!tests/long.jsonl")
        self.dirty = bool(changed)
        differences = changed + git("diff", "HEAD", "--", ".", ":!tests/long.jsonl")
        self._tree = f"{self.commit} {hashlib.sha256(differences.encode()).hexdigest()[:12]}"

    def run(self, part: Part) -> dict[str, Any]:
        """Run a part, append its line, and return the line."""
        state = self._state(part)
        words = shlex.split(part.command)
        command = [word.replace("{python}", sys.executable).replace("{state}", str(state)) for word in words]
        began, log = time.monotonic(), self._place / f"{part.name}.log"
        print(f"{part.name}: {part.about}, at most {part.minutes:g} minutes (tail -f {log})", flush=True)
        code, interrupted = _perform(command, log, part.minutes * 60)
        rounds = noted(state / "done")
        failed = {name: said for name, said in rounds.items() if said not in (OK, SKIPPED)}
        if not failed and code not in (0, None):
            failed = {"the command": f"exit code {code}: {_end_of(log)}"}
        line: dict[str, Any] = {
            "part": part.name, "commit": self.commit, "dirty": self.dirty,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "result": "red" if failed else "stopped" if code is None else "green",
            "rounds": sum(said == OK for said in rounds.values()),
            "skipped": sum(said == SKIPPED for said in rounds.values()),
            "seconds": round(time.monotonic() - began),
        }  # fmt: skip
        if failed:
            line["failed"] = [f"{name}: {said}"[:300] for name, said in list(failed.items())[:FAILED_MAX]]
        with self._lines.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(f"{part.name}: {line['result']}, {line['rounds']} rounds in {line['seconds']} s", flush=True)
        for said in line.get("failed", ()):
            print(f"    {said}", flush=True)
        # A part that has ended begins anew with its next run. What parts share is left, unless one of them failed.
        if line["result"] == "red" or (line["result"] == "green" and not part.shares):
            shutil.rmtree(state)
        if interrupted:
            raise KeyboardInterrupt
        return line

    def _state(self, part: Part) -> Path:
        """Return the directory of a part. What another tree left there is of no use and goes."""
        state = self._place / (part.shares or part.name)
        tree = state / "tree"
        if not tree.exists() or tree.read_text() != self._tree:
            shutil.rmtree(state, ignore_errors=True)
            state.mkdir(parents=True)
            tree.write_text(self._tree)
        return state


def _perform(command: list[str], log: Path, seconds: float) -> tuple[int | None, bool]:
    """Run a command with its output in a file. Return its exit code, None if it was stopped, and whether by Ctrl-C."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
        try:
            return process.wait(seconds), False
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
            # An interrupt lets tests end their servers and unmount their disks.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                pass
            return None, isinstance(why, KeyboardInterrupt)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="the parts to run; all if none is named")
    parser.add_argument("--list", action="store_true", help="print the parts")
    parser.add_argument("--report", action="store_true", help="print what was proved for which commit")
    args = parser.parse_args()
    by_name = {part.name: part for part in PARTS}
    unknown = [name for name in args.parts if name not in by_name]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; --list prints the parts")
    if args.list:
        print("\n".join(f"{part.name:14} {part.about}" for part in PARTS))
        return 0
    if args.report:
        print(report(LINES, [part.name for part in PARTS], git))
        return 0
    runner = Runner()
    results = [runner.run(by_name[name])["result"] for name in args.parts or by_name]
    return 1 if set(results) - {"green"} else 0


if __name__ == "__main__":
    sys.exit(main())
