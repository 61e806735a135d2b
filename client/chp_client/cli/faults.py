"""What can go wrong in a command, and the exit code that tells a script so.

    0  done                          3  no server within --timeout
    1  not found, or degraded        4  a server refused, or its data is not what it should be
    2  used wrongly                  130  Ctrl-C        141  the reader of our pipe has gone

`chp status` has its own reading of 1 and 2: degraded, and nobody active. An error is one line: the thing and the
remedy.
"""

import click

OK, NOT_FOUND, USAGE, NO_SERVER, REFUSED = range(5)
DEGRADED, NOBODY_ACTIVE = 1, 2
INTERRUPTED = 130
PIPE_CLOSED = 141


class Fault(click.ClickException):
    """A command could not do what it was asked; the text is the one line to show."""

    exit_code = NOT_FOUND

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.ctx = click.get_current_context(silent=True)  # whose command it was, for the line shown


class NotFound(Fault):
    """A key or a file that is not there."""


class Misused(Fault):
    """The command line itself is wrong."""

    exit_code = USAGE


class NoServer(Fault):
    """No server answered in time, or none that may serve."""

    exit_code = NO_SERVER


class RefusedByServer(Fault):
    """A server answered, and said no."""

    exit_code = REFUSED
