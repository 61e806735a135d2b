"""`chp-server`: from the command line to a running server, and from its end to an exit code.

    config  ->  logs  ->  journal  ->  server.bind()  ->  server.run() until a signal  ->  everything closed

Errors are found in that order, before the next step: a wrong setting never opens the journal, and a journal in use
never takes a port. Each kind of failure has its exit code (`exits.py`) and one line in the log that names the thing and
the remedy; only a defect of ours leaves a trace. SIGTERM and SIGINT end the run between two turns: acknowledged sets
are stored, the ports are closed, and the code is 0.
"""

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from . import logs
from .access.keyring import Keyring
from .core.state.journal import Journal, JournalDamaged, JournalError, JournalFull, JournalLocked, WrongStore
from .exits import CannotStart, Exit
from .settings import sources
from .settings.config import Config
from .shell.arbiter import ArbiterError
from .shell.metrics import MetricsError
from .store.store_url import journal_of

log = logs.get_log(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server, and return the exit code."""
    try:
        loaded = sources.load(sys.argv[1:] if argv is None else argv, os.environ)
    except sources.ConfigError as error:
        for problem in error.problems:
            print(f"chp-server: {problem}", file=sys.stderr)
        return Exit.USAGE
    # argparse raises SystemExit after --help and --version.
    except SystemExit as done:
        _printed("")
        return Exit.CLEAN if not done.code else Exit.USAGE
    except BrokenPipeError:
        # The help is longer than the buffer of the output, and argparse of Python 3.11.2 does not handle the error.
        _printed("")
        return Exit.CLEAN
    if loaded.show_config:
        _printed(sources.show(loaded) + "\n")
        return Exit.CLEAN
    logs.set_up(loaded.config.log_format, loaded.config.log_level, loaded.config.name)
    return _run_logged(loaded.config)


def _printed(text: str) -> None:
    """Print a text and flush what was printed before; a reader that closes the pipe is no failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_logged(config: Config) -> int:
    try:
        _run(config)
    except CannotStart as error:
        log.error("can't start", why=str(error), exit=int(error.code))
        return error.code
    except ArbiterError as error:
        log.error("can't start", why=str(error), exit=int(Exit.ARBITER_UNREACHABLE))
        return Exit.ARBITER_UNREACHABLE
    except MetricsError as error:
        log.error("can't start", why=str(error), exit=int(Exit.PORT_TAKEN))
        return Exit.PORT_TAKEN
    # The failure was found while reading the journal, or later.
    except JournalError as error:
        log.error("the journal failed", why=str(error), exit=int(_exit_of(error)))
        return _exit_of(error)
    except Exception:
        log.exception("a defect of this program ends it; please report it with this line", exit=int(Exit.BUG))
        return Exit.BUG
    log.info("ended")
    return Exit.CLEAN


def _take_descriptors() -> None:
    """Raise the limit of open files: each client has three connections, and shells begin with 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(config: Config) -> None:
    from .shell.cycles import Cycles
    from .shell.reactor import Server
    from .shell.replica import ReplicaServer
    from .shell.supervisor import Supervisor

    _take_descriptors()
    # Only the user of this process may read the files that it writes.
    os.umask(0o077)
    if os.path.exists(config.backup_dir) and not os.path.isdir(config.backup_dir):
        raise CannotStart(Exit.USAGE, f"{config.backup_dir} is no directory; give another --backup-dir")
    keyring = Keyring(config.keys, has_peer=config.peer is not None) if config.keys else None
    with _signals() as ending, _opened_journal(config) as journal:
        server = (ReplicaServer if config.replica else Server)(config, journal, keyring=keyring)
        cycles = Cycles()
        server.tidy, server.supervisor = cycles.step, Supervisor(os.environ)
        cycles.begin()
        ending.calls(server.stop)
        try:
            try:
                with _cannot_bind_explained(config):
                    server.bind()
            except ArbiterError:
                if ending.signal is None:
                    raise
                # The server was told to end while it looked for the arbiter.
                return
            server.run()
            server.leave()
        finally:
            server.close()


@contextmanager
def _opened_journal(config: Config) -> Iterator[Journal]:
    log.info("starting", pid=os.getpid(), **config.describe())
    if config.exposed:
        log.warning(
            "insecure", bind=config.bind, means="all that reach this server may read, set and replace everything"
        )
    try:
        if config.store != "memory:":
            os.makedirs(config.data, exist_ok=True)
        journal = _journal_of(config)
    except OSError as error:
        text = f"data directory {config.data} can't be used: {error.strerror or error}; give another --data"
        raise CannotStart(Exit.DATA_NOT_WRITABLE, text) from error
    except JournalError as error:
        raise CannotStart(_exit_of(error), str(error)) from error
    try:
        yield journal
    finally:
        journal.close()


def _journal_of(config: Config) -> Journal:
    """Open the journal. On a full disk, delete the reserve that the last run left, and try once more."""
    from .shell.resources import DiskReserve, Gauge

    try:
        return journal_of(config, beside=config.data)
    except JournalFull:
        if not DiskReserve(Gauge(0, 0, config.store).directory, 0).let_go():
            raise
        return journal_of(config, beside=config.data)


def _exit_of(error: JournalError) -> Exit:
    if isinstance(error, JournalLocked):
        return Exit.DATA_IN_USE
    if isinstance(error, JournalDamaged):
        return Exit.JOURNAL_DAMAGED
    if isinstance(error, JournalFull):
        return Exit.NO_ROOM
    return Exit.USAGE if isinstance(error, WrongStore) else Exit.DATA_NOT_WRITABLE


@contextmanager
def _cannot_bind_explained(config: Config) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        ports = f"{config.bind} and the three ports after it"
        if error.errno == errno.EADDRINUSE:
            text = (
                f"{error.filename} is taken, one of {ports}; end that program "
                f"(ss -ltnp 'sport = {str(error.filename).rpartition(':')[2]}' shows it) or give another --bind"
            )
        elif error.errno == errno.EACCES:
            text = f"{ports} may not be bound by this user; give --bind a port from 1024 up"
        else:
            text = f"{ports} can't be bound ({error}); give an address of this machine, or *"
        raise CannotStart(Exit.PORT_TAKEN, text) from error


class _Ending:
    """The handler of a signal: it calls `stop`, at once or as soon as `stop` is known.

    It does not log, since the signal may interrupt a line that is being logged.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self._stop: Callable[[], None] | None = None

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name
        if self._stop is not None:
            self._stop()

    def calls(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        if self.signal is not None:
            stop()


@contextmanager
def _signals() -> Iterator[_Ending]:
    """Let an `_Ending` handle SIGTERM and SIGINT, and restore the former handlers afterwards."""
    ending = _Ending()
    before = {number: signal.signal(number, ending.on_signal) for number in _SIGNALS}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if ending.signal:
            log.info("ending", signal=ending.signal)


if __name__ == "__main__":
    sys.exit(main())
