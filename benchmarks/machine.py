"""What a figure was measured with: versions, machine, date, command."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import zmq


def describe(argv: list[str]) -> dict[str, Any]:
    """Return the machine as a dict for the results."""
    return {
        "command": " ".join(["python -m benchmarks", *argv]),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "commit": _out("git", "rev-parse", "--short", "HEAD"),
        "changed_files": len(_out("git", "status", "--porcelain", "--untracked-files=no").splitlines()),
        "machine": {
            "cores": os.cpu_count(),
            "model": _model(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
            "load_before": round(load(), 2),
        },
        "versions": {
            "python": platform.python_version(),
            "os": platform.platform(terse=True),
            "libzmq": zmq.zmq_version(),
            **{name: _version(name) for name in ("chp-clone", "pyzmq", "msgpack", "redis", "hiredis", "pyspark")},
            "redis-server": _redis(),
        },
    }


def load() -> float:
    """Return the load of the last minute."""
    return os.getloadavg()[0]


def children_cpu_s() -> float:
    """Return the processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _redis() -> str | None:
    words = _out("redis-server", "--version").split()
    return next((word[2:] for word in words if word.startswith("v=")), None)


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or sys.platform


def _out(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
