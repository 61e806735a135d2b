"""covers: ops/kubernetes.yml: the API's schemas allow it, its parts belong together, its scripts do what they say."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chp_client.port.admin import Admin, AdminReply
from chp_server.testing import Pair, free_port
from tests.talk import until

MANIFESTS = Path(__file__).parents[2] / "ops" / "kubernetes.yml"
# The oldest version of the API that is checked, beside the newest of the package.
OLDEST = "1.29"
yaml = pytest.importorskip("yaml", reason="NOT VALIDATED: install kubernetes-validate, which is in the extra `test`")
SHELL = shutil.which("sh")


def documents() -> dict[str, Any]:
    """Return kind -> manifest."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS.read_text())}


def pod() -> dict[str, Any]:
    """Return the pod of the set."""
    made: dict[str, Any] = documents()["StatefulSet"]["spec"]["template"]["spec"]
    return made


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "StatefulSet"])
def test_the_kubernetes_schemas_accept_each_manifest(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for version in (OLDEST, validate.latest_version()):
        validate.validate(documents()[kind], version, strict=True)


def test_the_manifests_refer_to_each_other_consistently() -> None:
    found, (container,) = documents(), pod()["containers"]
    whole = found["StatefulSet"]["spec"]
    assert whole["replicas"] == 2 and whole["podManagementPolicy"] == "Parallel"
    assert whole["serviceName"] == found["Service"]["metadata"]["name"]
    labels = whole["template"]["metadata"]["labels"]
    for selector in (whole["selector"], found["PodDisruptionBudget"]["spec"]["selector"]):
        assert selector["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels and found["Service"]["spec"]["clusterIP"] == "None"
    assert found["Service"]["spec"]["publishNotReadyAddresses"] is True, "else neither finds the other"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {each["name"]: each["port"] for each in found["Service"]["spec"]["ports"]}
    volumes = {
        each["name"] for each in [*pod()["volumes"], *(each["metadata"] for each in whole["volumeClaimTemplates"])]
    }
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    probes = {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"/health", "/ready"} and container["readinessProbe"]["httpGet"]["path"] == "/ready"
    seconds = pod()["terminationGracePeriodSeconds"]
    assert seconds >= 45, "a hand-over, and then the server's own end"


def run(script: str, path: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the pod. `path` is its PATH, and `environ` has its other variables."""
    assert SHELL is not None
    return subprocess.run(
        [SHELL, "-euc", script], env={"PATH": path, **environ}, capture_output=True, text=True, timeout=60, check=False
    )


def program(folder: Path, name: str, what: str) -> None:
    """Write a script that runs `what` under the name that the program has in the image."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f'#!/bin/sh\nexec {what} "$@"\n')
    (folder / name).chmod(0o755)


def test_a_pod_keeps_role_and_keys_of_its_ordinal_over_restarts(tmp_path: Path) -> None:
    (script,) = pod()["containers"][0]["args"]
    script = script.replace("/etc/chp", f"{tmp_path}/etc").replace("/run/chp", f"{tmp_path}/run")
    program(tmp_path / "bin", "chp-server", f"{sys.executable} -m chp_server --show-config")
    program(tmp_path / "bin", "chp", f"{sys.executable} -m chp_client")
    path = f"{tmp_path}/bin:{os.defpath}"
    for folder in ("servers", "operator", "clients/..data"):
        (tmp_path / "etc" / folder).mkdir(parents=True)
    made = run(
        f"cd {tmp_path}/etc/servers; chp keygen chp-0; chp keygen chp-1; cd ../operator\n"
        "chp keygen operator --server tcp://chp-0.chp:5556=../servers/chp-0.pub "
        "--server tcp://chp-1.chp:5556=../servers/chp-1.pub\n"
        "mv operator.toml client.toml; mv operator.pub ../clients/..data",
        path,
    )
    assert made.returncode == 0, made.stderr
    for name, role, peer in (
        ("chp-0", "primary", "chp-1"),
        ("chp-0", "primary", "chp-1"),
        ("chp-1", "backup", "chp-0"),
    ):
        done = run(script, path, HOSTNAME=name)
        assert done.returncode == 0, done.stderr
        assert f'role = "{role}"' in done.stdout and f'peer = "tcp://{peer}.chp:5556"' in done.stdout, done.stdout
        keys = tmp_path / "run" / "keys"
        assert (keys / "server.secret").read_text() == (tmp_path / "etc/servers" / f"{name}.secret").read_text()
        assert (keys / "peer.pub").read_text() == (tmp_path / "etc/servers" / f"{peer}.pub").read_text()
        assert [each.name for each in (keys / "clients").iterdir()] == ["operator.pub"]
        for secret in (keys / "server.secret", tmp_path / "run" / "operator.toml"):
            assert stat.S_IMODE(secret.stat().st_mode) == 0o400
    third = run(script, path, HOSTNAME="chp-2")
    assert third.returncode == 2 and "a pair has two servers" in third.stderr


def states(pair: Pair) -> list[str]:
    with Admin(pair.servers, timeout_s=5) as admin:
        return [each.facts["state"] for each in admin.ask_all("status").values() if isinstance(each, AdminReply)]


@pytest.mark.slow
def test_only_the_active_hands_over_before_it_is_ended(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    *_, script = pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    program(tmp_path / "bin", "chp", f"{sys.executable} -m chp_client")
    program(tmp_path / "bin", "python", sys.executable)
    path, ports = f"{tmp_path}/bin:{os.defpath}", [str(free_port()) for _ in range(2)]
    pair = Pair(store=(f"sqlite:{tmp_path}/a", f"sqlite:{tmp_path}/b"))
    for server, port in zip((pair.primary, pair.backup), ports, strict=True):
        server.config = replace(server.config, metrics=f"127.0.0.1:{port}")
    with pair:
        for port, after in ((ports[1], ["active", "passive"]), (ports[0], ["passive", "active"])):
            while states(pair) != ["active", "passive"] or not ready(ports):
                time.sleep(0.1)
            done = run(script.replace("9100", port), path, CHP_SERVERS=",".join(pair.servers))
            assert done.returncode == 0, (port, done)
            until(lambda after=after: states(pair) == after, f"the states after {port}")  # type: ignore[misc]
    assert run(script.replace("9100", ports[0]), path, CHP_SERVERS=",".join(pair.servers)).returncode == 0, (
        "nobody is there"
    )


def ready(ports: list[str]) -> bool:
    """Return True if both ports say that they are ready."""
    import urllib.error
    import urllib.request

    try:
        return all(urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).status == 200 for port in ports)
    except urllib.error.HTTPError:
        return False
