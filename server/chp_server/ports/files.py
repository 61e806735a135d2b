"""Listening on files, beside the ports: for programs of this host and user, which save a part of the way.

`--ipc DIR` means the files DIR/P, DIR/P+1 and DIR/P+2, named as the ports that they stand beside. Whoever may write to
a file reaches the server by it: the files are 0700, so that is our own user (and root), and DIR is nobody else's.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import zmq

from chp.addresses import beside

from ..exits import CannotStart, Exit


def listen(sockets: list[zmq.Socket[bytes]], address: str) -> list[Path]:
    """Bind them to `ipc://DIR/P` and those after it; the files, to be unlinked before the sockets are closed.

    The ports are ours by now. `CannotStart` names what is wrong.
    """
    directory = Path(address.removeprefix("ipc://")).parent
    made: list[Path] = []
    try:
        _prepare(directory)
        for offset, each in enumerate(sockets):
            place = beside(address, offset)
            file = Path(place.removeprefix("ipc://"))
            if _is_served(file):
                raise CannotStart(Exit.PORT_TAKEN, f"another server listens on {file}; end it, or give another --ipc")
            each.bind(place)
            made.append(file)
            file.chmod(0o700)
    except (OSError, zmq.ZMQError) as error:
        text = f"the files {address} and those after it can't be made ({error}); give --ipc a directory of this user"
        raise CannotStart(Exit.PORT_TAKEN, text) from error
    return made


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o022:
        raise CannotStart(
            Exit.USAGE, f"--ipc {directory}: others may write there, and put their own files in place of these; "
            "give a directory of this user alone"
        )  # fmt: skip


def _is_served(file: Path) -> bool:
    """Whether somebody listens there; the file of one that was killed is nobody's, and libzmq takes it away."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(file)) == 0
