"""The exit codes of `chp-server`: one number a kind of failure, for supervisors and scripts.

A supervisor should restart on 7, 8 and 70, and on a signal; 2 to 6 need a person, and a restart would only
repeat them. The numbers are fixed: scripts depend on them.
"""

from enum import IntEnum

from chp.errors import ChpError


class Exit(IntEnum):
    """The exit codes."""

    CLEAN = 0
    USAGE = 2
    PORT_TAKEN = 3
    DATA_NOT_WRITABLE = 4
    DATA_IN_USE = 5
    JOURNAL_DAMAGED = 6
    ARBITER_UNREACHABLE = 7
    NO_ROOM = 8
    BUG = 70


MEANING = {
    Exit.CLEAN: "ended cleanly (SIGTERM, SIGINT), or only printed something",
    Exit.USAGE: "a flag, a CHP_SERVER_* variable or the configuration file is wrong",
    Exit.PORT_TAKEN: "a port (one of the four, or --metrics) is taken or can't be bound",
    Exit.DATA_NOT_WRITABLE: "the data directory can't be made or written, or the store can't be reached",
    Exit.DATA_IN_USE: "another server uses this data directory or store",
    Exit.JOURNAL_DAMAGED: "the journal is damaged (see --recover)",
    Exit.ARBITER_UNREACHABLE: "the arbiter can't be reached",
    Exit.NO_ROOM: "the journal has no room; it was told to end, or could not begin",
    Exit.BUG: "a defect of this program; the log has the trace",
}


class CannotStart(ChpError):
    """An error that keeps the server from starting, with its exit code; the text names the thing and the remedy."""

    def __init__(self, code: Exit, text: str) -> None:
        super().__init__(text)
        self.code = code
