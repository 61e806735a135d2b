"""Waiting for sockets on their descriptors: one system call, where zmq_poll makes three for each socket, and twice.

libzmq lets a descriptor speak when there is something to be seen to, and not again before that was done; and whatever
is done with a socket sees to it, sending too. From then on only the socket knows whether messages are left in it. So
what was used is asked before the next wait, but for what was emptied: that stands in `again`.
"""

from __future__ import annotations

import select
from typing import Any

import zmq

POLLIN = int(zmq.POLLIN)
ask: Any = zmq.zmq_poll  # of a socket alone, at once: in half the time of zmq.Socket.get(zmq.EVENTS)


class Waiting:
    """Sockets and pipes, of which those with something to read are wanted."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._things: dict[int, Any] = {}
        self.again: set[Any] = set()  # sockets whose descriptors may keep silent though they have something

    def add(self, socket: zmq.Socket[bytes]) -> None:
        """Wait for a socket too."""
        self._register(int(socket.get(zmq.FD)), socket)
        self.again.add(socket)

    def add_pipe(self, descriptor: int) -> None:
        """Wait for a pipe too; its descriptor stands for it."""
        self._register(descriptor, descriptor)

    def _register(self, descriptor: int, thing: object) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)
        self._things[descriptor] = thing

    def all_again(self) -> None:
        """Much was done with many of them."""
        self.again.update(thing for thing in self._things.values() if type(thing) is not int)

    def wait(self, timeout_ms: int) -> set[Any]:
        """Those that may have something to read, after `timeout_ms` at the latest; each is then to be looked at."""
        again = self.again
        ready = {socket for socket, _ in ask([(socket, POLLIN) for socket in again], 0)}
        told = self._epoll.poll(0 if ready else timeout_ms / 1000)
        again.clear()
        again |= ready
        for descriptor, _ in told:
            thing = self._things[descriptor]
            ready.add(thing)
            if thing is not descriptor:
                again.add(thing)
        return ready

    def close(self) -> None:
        """Wait for nothing any more."""
        self._epoll.close()
