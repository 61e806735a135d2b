"""covers: pytest_chp: its fixtures in the tests of a user, and the example of docs/testing.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MINE = """
from chp_client import Clone

def test_one(chp_clone, chp_pair):
    with Clone() as mine:  # of CHP_SERVERS, as the program under test makes it
        mine.wait_until_synced(30)
        mine.set("/a", b"1").wait(30)
    assert chp_clone.sync(30) and dict(chp_clone) == {"/a": b"1"}

def test_two(chp_clone):
    assert not chp_clone, "nothing is left of another test"

def test_a_link_that_is_cut_and_mended(chp_pair, chp_clone):
    chp_clone.set("/a", b"1").wait(30)
    chp_pair.cut()
    for n in range(2000):  # until the active has missed its passive
        if chp_clone.set("/a", b"%d" % n).wait(30).durability == "applied":
            break
    else:
        raise AssertionError("both still have all of it")
    chp_pair.mend()
    while chp_clone.set("/a", b"after").wait(30).durability != "replicated":
        pass
    chp_pair.kill()
    chp_clone.set("/b", b"2").wait(30)
    assert dict(chp_clone) == {"/a": b"after", "/b": b"2"}

def test_the_environment_names_the_pair(chp_pair, monkeypatch):
    import os
    assert os.environ["CHP_SERVERS"].split(",") == chp_pair.servers and "CHP_CLIENT_FILE" not in os.environ
"""


def run(directory: Path, text: str) -> str:
    (directory / "test_mine.py").write_text(text)
    environ = {**os.environ, "CHP_SERVERS": "nowhere:1", "CHP_CLIENT_FILE": "nobody", "PYTEST_ADDOPTS": ""}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_chp", "-p", "no:cacheprovider", str(directory)]
    done = subprocess.run(argv, cwd=directory, env=environ, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def test_each_test_has_a_pair_of_its_own(tmp_path: Path) -> None:
    assert "4 passed" in (said := run(tmp_path, MINE)), said


def test_the_example_in_the_testing_page_passes(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.S)
    assert "1 passed" in (said := run(tmp_path, code)), said


def test_importing_the_plugin_loads_no_module_of_chp_or_zmq() -> None:
    code = "import sys, pytest_chp; print([m for m in sys.modules if m.startswith(('chp', 'zmq'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
