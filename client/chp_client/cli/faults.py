"""The errors of commands, with the exit codes that scripts see.

    0  done                          3  no server within --timeout
    1  not found, or degraded        4  a server refused, or its data is not what it should be
    2  used wrongly                  130  Ctrl-C        141  the reader of our pipe has gone

`chp status` reads 1 and 2 in its own way: degraded, and no server is active. An error is one line: the cause and the
remedy.
"""

import click

OK, NOT_FOUND, USAGE, NO_SERVER, REFUSED = range(5)
DEGRADED, NOBODY_ACTIVE = 1, 2
INTERRUPTED = 130
PIPE_CLOSED = 141


class Fault(click.ClickException):
    """An error of a command; its text is the one line to show."""

    exit_code = NOT_FOUND

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # The line shown begins with the name of this context's command.
        self.ctx = click.get_current_context(silent=True)


class NotFound(Fault):
    """A key or a file that does not exist."""


class Misused(Fault):
    """A wrong command line."""

    exit_code = USAGE


class NoServer(Fault):
    """No server answered in time, or none of them may serve."""

    exit_code = NO_SERVER


class RefusedByServer(Fault):
    """A server answered with a refusal."""

    exit_code = REFUSED
