"""Runs of tests that may go on after a failure: a run with `--done` leaves out the tests that passed before."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Mapping

from .tree import ROOT

# Tests that are interrupted have this time to end their servers, which is less than tests.long gives to a part.
LEAVE_S = 50.0


def perform(tries: Iterable[list[str]], environ: Mapping[str, str], seconds_max: float) -> int:
    """Run commands in turn until one succeeds, each for at most `seconds_max`. Return the last exit code."""
    code = 0
    for argv in tries:
        with subprocess.Popen(argv, cwd=ROOT, env=environ) as tests:
            try:
                code = tests.wait(seconds_max)
            except KeyboardInterrupt:
                tests.send_signal(signal.SIGINT)
                tests.wait(LEAVE_S)
                raise
            finally:
                tests.kill()
        if code == 0:
            break
    return code
