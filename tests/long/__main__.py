"""Run long proofs, one part or all in turn: `python -m tests.long [PART ...] [--list] [--report]`.

Each run of a part appends a line to tests/long.jsonl, which is committed: the part, the commit, whether the tree
differed from the commit, the result, how many rounds went well, and the names of the failed rounds. "again" counts the
rounds that went well at a further try.

    green     All rounds went well, or were skipped because a program that they need is missing.
    red       A round failed, and failed again if the part repeats such rounds. artifacts/long/PART.log has the output.
    stopped   The time was over, or the run was interrupted. The next run of the part goes on where this one was.
    skipped   All rounds were skipped, or there was none.

The exit code is 0 if all parts are green, 1 if one is not, 2 if a part can't run, and 130 after an interrupt.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from . import tree
from .parts import PARTS, Part
from .report import report
from .state import OK, SKIPPED, again, noted
from .tree import ROOT, Tree

LINES, PLACE = ROOT / tree.LINES, ROOT / "artifacts/long"
# A part that is stopped has this time to end its processes.
LEAVE_S = 60.0
FAILED_MAX = 20
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CannotRunError(Exception):
    """An error that says why a part can't run now, and what to do."""


class Runner:
    """The runner of parts."""

    def __init__(self, place: Path = PLACE, lines: Path = LINES, look: Callable[[], Tree] = tree.look) -> None:
        self._place, self._lines, self._look = place, lines, look

    def run(self, part: Part) -> dict[str, Any]:
        """Run a part, append its line, and return the line."""
        with self._locked(part) as lock:
            began, before = time.monotonic(), self._look()
            state = self._state(part, before)
            words = shlex.split(part.command)
            command = [word.replace("{python}", sys.executable).replace("{state}", str(state)) for word in words]
            log = self._place / f"{part.name}.log"
            print(f"{part.name}: {part.about}, at most {part.minutes:g} minutes (tail -f {log})", flush=True)
            code, interrupted = _perform(command, log, part.minutes * 60, lock)
            after = self._look()
            line = _line(part, before, code, state / "done", log)
            if after.content != before.content:
                line["dirty"] = True
                print(f"{part.name}: files changed while it ran, so its line proves nothing", flush=True)
            line["seconds"] = round(time.monotonic() - began)
            self._append(line)
            _tell(part, line)
            # A part that has ended begins anew with its next run, so its directory goes. A directory that parts share
            # stays, unless a part has failed or files have changed.
            ended = line["result"] not in ("stopped", "red") and not part.shares
            if ended or line["result"] == "red" or after.content != before.content:
                shutil.rmtree(state)
        if interrupted:
            raise KeyboardInterrupt
        return line

    @contextmanager
    def _locked(self, part: Part) -> Iterator[IO[str]]:
        """Keep other runs of a part away. The part's processes inherit the lock, in case this process is killed."""
        self._place.mkdir(parents=True, exist_ok=True)
        with (self._place / f"{part.shares or part.name}.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise CannotRunError(
                    f"{part.name} runs already: wait for it, or end its processes by `kill -- -{lock.read() or 'PID'}`"
                ) from None
            lock.truncate(0)
            yield lock

    def _state(self, part: Part, now: Tree) -> Path:
        """Return the directory of a part. Remove what a run on another tree has left there."""
        state = self._place / (part.shares or part.name)
        of = state / "tree"
        if not of.exists() or of.read_text() != now.content:
            if state.exists():
                print(f"{part.name}: it begins anew, as the tree has changed", flush=True)
            shutil.rmtree(state, ignore_errors=True)
            state.mkdir(parents=True)
            of.write_text(now.content)
        return state

    def _append(self, line: dict[str, Any]) -> None:
        with self._lines.open("a+") as out:
            # An editor may have removed the newline at the end of the file.
            out.seek(0)
            text = out.read()
            out.write("\n" * (text[-1:] not in ("", "\n")) + json.dumps(line) + "\n")


def _line(part: Part, ran: Tree, code: int | None, done: Path, log: Path) -> dict[str, Any]:
    """Return the line of a run with an exit code, which is None if it was stopped."""
    rounds = noted(done) if part.notes_rounds else {"the command": OK} if code == 0 else {}
    failed = {name: said for name, said in rounds.items() if said not in (OK, SKIPPED)}
    if not failed and code not in (0, None):
        failed = {"the command": f"exit code {code}: {_end_of(log)}"}
    well = sum(said == OK for said in rounds.values())
    stopped = code is None and (part.retries or not failed)
    line: dict[str, Any] = {
        "part": part.name, "commit": ran.commit, "dirty": ran.dirty,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "result": "stopped" if stopped else "red" if failed else "green" if well else "skipped",
        "rounds": well, "skipped": sum(said == SKIPPED for said in rounds.values()), "seconds": 0,
    }  # fmt: skip
    if more := again(done):
        line["again"] = more
    if failed:
        line["failures"] = len(failed)
        line["failed"] = [f"{name}: {said}"[:300] for name, said in list(failed.items())[:FAILED_MAX]]
    return line


def _tell(part: Part, line: dict[str, Any]) -> None:
    print(f"{part.name}: {line['result']}, {line['rounds']} rounds in {line['seconds']} s", flush=True)
    told = line.get("failed", [])
    for said in told:
        print(f"    {said}", flush=True)
    if (left := line.get("failures", 0) - len(told)) > 0:
        print(f"    and {left} more", flush=True)
    if told and part.again:
        print(f"    {part.again.format(round=told[0].partition(':')[0])}", flush=True)


def _perform(command: list[str], log: Path, seconds: float, lock: IO[str]) -> tuple[int | None, bool]:
    """Run a command with its output in a file. Return its exit code, None if it was stopped, and whether by Ctrl-C."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=out, stderr=out, start_new_session=True, pass_fds=[lock.fileno()]
        )
        lock.write(str(process.pid))
        lock.flush()
        try:
            return process.wait(seconds), False
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
            _end(process)
            return None, isinstance(why, KeyboardInterrupt)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt tests, and let them end their servers and unmount their disks. Ignore further interrupts meanwhile."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
    print(f"stopping, which takes at most {LEAVE_S:g} s", flush=True)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        pass
    for number, handler in before.items():
        signal.signal(number, handler)


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
    # A shell makes a background process ignore interrupts, and the parts would inherit this.
    for number in INTERRUPTS:
        signal.signal(number, signal.default_int_handler)
    try:
        if args.report:
            table, wrong = report(LINES, PARTS, tree.git)
            print("\n".join([table, "", *wrong] if wrong else [table]))
            return 1 if wrong else 0
        if not args.parts:
            print(f"all {len(PARTS)} parts in turn, which takes some ten hours", flush=True)
        runner = Runner()
        results = [runner.run(by_name[name])["result"] for name in args.parts or by_name]
        return 1 if set(results) - {"green"} else 0
    except KeyboardInterrupt:
        return 130
    except CannotRunError as error:
        print(error, file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"the parts run in a clone of the repository, with git: {error.stderr.strip() or error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
