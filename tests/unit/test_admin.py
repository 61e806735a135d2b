"""Admin requests against sockets that answer as a server would, or as something else would."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
import zmq

from chp.batch import GREETING, REFUSED, REPLY, join
from chp.errors import BadInput
from chp.keys import ETX, RESERVED_KEY, STX
from chp.messages import hugz
from chp.numbers import number, pack
from chp.versions import VERSION
from chp_client import Refused
from chp_client.port.admin import Admin, AdminError, AdminReply, SpeaksOnlyChp1, Unreachable
from chp_server.testing import free_port

PATIENCE_S = 20.0
Handler = Callable[[str, dict[str, Any]], list[Any] | None]


class Fake:
    """P and P+1 of a server: greets (or sends HUGZ as CHP/1 does), and answers requests by a function."""

    def __init__(self, answer: Handler, greets: bool = True) -> None:
        self.answer, self.greets = answer, greets
        self.requests: list[tuple[str, dict[str, Any]]] = []
        port = free_port()
        self.address = f"tcp://127.0.0.1:{port}"
        self._context = zmq.Context()
        self._snapshot = self._context.socket(zmq.ROUTER)
        self._snapshot.bind(self.address)
        self._updates = self._context.socket(zmq.XPUB)
        self._updates.bind(f"tcp://127.0.0.1:{port + 1}")
        self._stop = self._context.socket(zmq.PULL)
        self._stop.bind("inproc://stop")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._snapshot, self._updates, self._stop):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stop in ready:
                return
            if self._updates in ready:
                self._greet(self._updates.recv()[1:])
            if self._snapshot in ready:
                self._reply(self._snapshot.recv_multipart())

    def _greet(self, topic: bytes) -> None:
        if self.greets and topic[:1] == STX:
            body = join([GREETING, 3, 3, 7, 250, bytes(16), "fake"])
            self._updates.send_multipart([topic, pack(7), b"", b"", body])
        elif not self.greets and topic == b"HUGZ":
            self._updates.send_multipart(hugz(7))

    def _reply(self, frames: list[bytes]) -> None:
        identity, word, command, options = frames
        assert (word, command[:1], command[-1:]) == (b"ICANHAZ?", STX, ETX)
        said = msgpack.unpackb(options)
        self.requests.append((command[1:-1].decode(), said))
        header = self.answer(command[1:-1].decode(), said)
        if header is not None:
            self._snapshot.send_multipart([identity, RESERVED_KEY, pack(number(3, 7)), b"", b"", join(header)])

    def close(self) -> None:
        stop = self._context.socket(zmq.PUSH)
        stop.connect("inproc://stop")
        stop.send(b"")
        self._thread.join()
        self._context.destroy(linger=0)


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def make(answer: Handler, **how: Any) -> Fake:
        made.append(Fake(answer, **how))
        return made[-1]

    yield make
    for server in made:
        server.close()


def _says(**facts: Any) -> Handler:
    return lambda command, options: [REPLY, options["id"], facts]


def _refuses(code: str, detail: Any) -> Handler:
    return lambda command, options: [REFUSED, options["id"], code, detail]


def test_a_server_tells_its_status(fake: Callable[..., Fake]) -> None:
    server = fake(_says(state="active"))
    with Admin([server.address], PATIENCE_S) as admin:
        assert admin.ask(server.address, "status") == AdminReply(server.address, number(3, 7), {"state": "active"})
        admin.ask(server.address, "backup", path="/x")
    assert [(command, options["chp"], options.get("path")) for command, options in server.requests] == [
        ("status", VERSION, None),
        ("backup", VERSION, "/x"),
    ]


def test_ask_all_reports_a_server_that_is_unreachable(fake: Callable[..., Fake]) -> None:
    server, nobody = fake(_says(state="active")), f"tcp://127.0.0.1:{free_port()}"
    with Admin([nobody, server.address], 1.0) as admin:
        answers = admin.ask_all("status")
    assert isinstance(answers[server.address], AdminReply)
    away = answers[nobody]
    assert isinstance(away, Unreachable)
    assert not away.connected
    assert "nobody listens there" in str(away)


def test_a_silent_server_is_reported_as_connected(fake: Callable[..., Fake]) -> None:
    server = fake(lambda command, options: None)
    with Admin([server.address], 1.0) as admin, pytest.raises(Unreachable, match="does not answer") as error:
        admin.ask(server.address, "switch")
    assert error.value.connected
    # A second switch is never sent.
    assert len(server.requests) == 1


def test_a_status_request_is_sent_again_if_its_answer_is_lost(fake: Callable[..., Fake]) -> None:
    calls: list[int] = []

    def answer(command: str, options: dict[str, Any]) -> list[Any] | None:
        calls.append(1)
        return None if len(calls) == 1 else [REPLY, options["id"], {"state": "active"}]

    server = fake(answer)
    with Admin([server.address], PATIENCE_S) as admin:
        assert admin.ask(server.address, "status").facts == {"state": "active"}
    assert len(calls) == 2


def test_a_chp1_server_is_sent_no_admin_request(fake: Callable[..., Fake]) -> None:
    server = fake(_says(), greets=False)
    with Admin([server.address], PATIENCE_S) as admin, pytest.raises(SpeaksOnlyChp1, match="CHP/1 only"):
        admin.ask(server.address, "status")
    assert server.requests == []


def test_a_refusal_has_code_and_detail(fake: Callable[..., Fake]) -> None:
    server = fake(_refuses("bad", "not known; try status"))
    with Admin([server.address], PATIENCE_S) as admin, pytest.raises(Refused, match="not known") as error:
        admin.ask(server.address, "backup")
    assert (error.value.code, error.value.detail, error.value.server) == (
        "bad",
        "not known; try status",
        server.address,
    )


def test_the_active_server_is_found(fake: Callable[..., Fake]) -> None:
    passive, active = fake(_says(state="passive")), fake(_says(state="active", done=1))
    with Admin([passive.address, active.address], PATIENCE_S) as admin:
        assert admin.ask_active("backup").facts["done"] == 1
    assert [command for command, _ in passive.requests] == ["status"]
    with Admin([passive.address], PATIENCE_S) as admin, pytest.raises(AdminError, match="none is active"):
        admin.ask_active("backup")


def test_a_reply_of_another_kind_is_an_admin_error(fake: Callable[..., Fake]) -> None:
    server = fake(lambda command, options: [GREETING, 3, 3, 7, 250, bytes(16), "fake"])
    with Admin([server.address], PATIENCE_S) as admin, pytest.raises(AdminError, match="not CHP/2"):
        admin.ask(server.address, "status")


@pytest.mark.parametrize("servers", [[], ["non/sense"], ["tcp://127.0.0.1:x"]])
def test_an_invalid_server_list_is_refused(servers: list[str]) -> None:
    with pytest.raises(BadInput):
        Admin(servers)
