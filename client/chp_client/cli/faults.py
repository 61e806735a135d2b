"""The errors of commands, with the exit codes that scripts see.

    0  done                          3  no server within --timeout
    1  not found, or degraded        4  a server refused, or its data is not what it should be
    2  used wrongly                  130  Ctrl-C        141  the reader of the output has closed the pipe

For `chp status`, 1 means that the pair is degraded, and 2 that no server is active. An error is one line: the cause and
the remedy.
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
    """The failure that no server answered in time, or that none of them may serve."""

    exit_code = NO_SERVER


class RefusedByServer(Fault):
    """A refusal by a server, or another failure with exit code 4."""

    exit_code = REFUSED
