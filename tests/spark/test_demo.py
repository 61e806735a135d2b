"""The demo as a newcomer runs it: it ends with everything equal; and however it is ended, it leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from examples.rates import demo, processes
from examples.rates.display import Plain

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]
CONSOLE = re.compile(r"http://127\.0\.0\.1:\d+/")
LAST = re.compile(r"demo: (\d+) published, 3 applications agree, 0 lost, failover took (\d+\.\d) s")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the demo with a temporary folder, and with a mark in its environment that names its processes."""
    env = {**os.environ, "TMPDIR": str(tmp_path), "CHP_DEMO_TEST": str(tmp_path)}
    command = [sys.executable, "-m", "examples.rates.demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        yield process
        process.kill()


def left_behind(mark: Path) -> list[str]:
    """Return the processes that were started with this mark, and the files in the temporary folder."""
    found = [f"file {path.name}" for path in mark.iterdir() if path.name.startswith("chp-demo-")]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"CHP_DEMO_TEST={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100])
        except OSError:
            # The process ended meanwhile, or belongs to another user.
            continue
    return found


def test_the_demo_ends_with_equal_applications(run: subprocess.Popen[str], tmp_path: Path) -> None:
    assert run.stdout is not None
    said = ""
    while (found := CONSOLE.search(said)) is None:
        line = run.stdout.readline()
        assert line, run.communicate()[1]
        said += line
    shown = httpx.HTTPTransport(retries=8, verify=False)
    with httpx.Client(transport=shown, trust_env=False, verify=False, timeout=60) as client:
        assert "<title>chp</title>" in client.get(found[0]).text, "it is served while the demo runs"
    out, err = run.communicate(timeout=360)
    match = LAST.fullmatch(out.splitlines()[-1])
    assert run.returncode == 0 and match, out + err
    assert int(match[1]) > 300 and float(match[2]) < 30
    assert "kill -9 the active server" in out and "it has caught up" in out
    assert left_behind(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("number", "started"), [(signal.SIGINT, "Spark starts"), (signal.SIGTERM, "reads the backlog")]
)
def test_an_interrupted_demo_leaves_no_processes_or_files(
    run: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, started: str
) -> None:
    assert run.stdout is not None
    while started not in (line := run.stdout.readline()):
        assert line, run.communicate()[1]
    assert left_behind(tmp_path)
    run.send_signal(number)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 128 + number and f"interrupted by {number.name}" in err
    assert left_behind(tmp_path) == []


def test_a_failure_names_the_ended_process_and_shows_its_last_output(tmp_path: Path) -> None:
    with processes.Family(tmp_path) as family:
        dying = family.start("dying", [sys.executable, "-c", "print('last words'); raise SystemExit(3)"])
        scene = demo.Demo(family, tmp_path, Plain())
        with pytest.raises(processes.Failed, match="dying has ended") as failed:
            scene.wait(lambda: False, "nothing")
        assert "last words" in failed.value.said
        assert dying.end() == 3


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "END_S", 1.0)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    with processes.Family(tmp_path) as family:
        process = family.start("stubborn", [sys.executable, "-c", stubborn])
        deadline = time.monotonic() + 30
        while not process.said("up") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.running()
    assert not process.running()


def test_differences_are_missing_other_and_superfluous_keys() -> None:
    assert demo.differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4"}) == {"b", "c", "d"}
