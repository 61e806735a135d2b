"""covers: recipes while holders and servers are killed and stopped; `chp lock` and `chp elect` as commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client import Clone
from chp_client.port.feed import Feed
from chp_client.recipes import Counter, Party
from tests.talk import until

from .cluster import ProcessPair
from .contender import KEY, LIMIT, PATH, TTL_S

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WORKERS = 4


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ProcessPair]:
    with ProcessPair(tmp_path) as started:
        yield started


class Worker:
    """A process that takes part in a recipe. It can be killed and started again."""

    def __init__(self, pair: ProcessPair, kind: str, name: str, path: Path) -> None:
        self.name = name
        self._argv = [sys.executable, "-m", "tests.process.contender", kind, ",".join(pair.servers), name, str(path)]
        self.log = path.with_suffix(f".{name}")
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, cwd=ROOT, stdout=log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def stand_still(self) -> None:
        """Stop the process for longer than its lease, so that it wakes and believes that it still holds the lock."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(2 * TTL_S)
        self.process.send_signal(signal.SIGCONT)


class Torment:
    """The workers of one recipe, and the faults that hit them and the pair."""

    def __init__(self, pair: ProcessPair, kind: str, path: Path) -> None:
        self.pair, self.path = pair, path
        path.write_text("")
        self.workers = [Worker(pair, kind, f"w{i}", path) for i in range(WORKERS)]
        self.kills = 0

    def __enter__(self) -> Torment:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers:
            worker.kill()

    def rows(self) -> list[tuple[int, str]]:
        """Return the lines that the processes wrote, without a half-written last line."""
        lines = self.path.read_text().split("\n")[:-1]
        return [(int(token), name) for token, name in (line.split() for line in lines)]

    def more(self, n: int = 8) -> None:
        """Wait until there are `n` more tokens, or sums."""
        before = len({token for token, _ in self.rows()})
        until(lambda: len({t for t, _ in self.rows()}) >= before + n, f"{n} more of {self.path.name}")

    def holder(self) -> Worker:
        """Return the process that wrote last, which holds the lock or did a moment ago."""
        name = self.rows()[-1][1]
        return next(worker for worker in self.workers if worker.name == name)

    def kill_holder(self) -> None:
        """Kill the holder with SIGKILL, and start it again."""
        victim = self.holder()
        victim.kill()
        self.kills += 1
        victim.start()

    def kill_active(self) -> None:
        """Kill the active with SIGKILL, and start it again once the other server serves."""
        until(self.pair.active, "an active")
        active = self.pair.active()
        assert active is not None, "it was there a moment ago"
        active.kill()
        self.more(3)
        active.start()
        self.pair.wait_in_sync()

    def kill_active_while_the_holder_stands_still(self) -> None:
        """Kill the active while the holder is stopped, so that the holder wakes under the other server."""
        self.holder().process.send_signal(signal.SIGSTOP)
        self.kill_active()

    def run(self) -> None:
        """Kill a holder, stop a holder, kill the active, and at last kill the active while a holder is stopped."""
        self.more()
        for act in (
            self.kill_holder,
            lambda: self.holder().stand_still(),
            self.kill_active,
            self.kill_active_while_the_holder_stands_still,
        ):
            act()
            for worker in self.workers:
                worker.process.send_signal(signal.SIGCONT)
            self.more()


def held(pair: ProcessPair) -> dict[int, dict[str, int]]:
    """Return token -> {holder: number of holders at that moment} from the servers' records.

    Two holders of a semaphore that get their places in one record have equal tokens.
    """
    found: dict[int, dict[str, int]] = {}
    there: set[str] = set()
    with Feed(pair.servers, "/recipe/") as feed:
        for records in feed.fetch(feed.facts().oldest, 60):
            for record in records:
                for i, key in enumerate(record.keys):
                    if not key.endswith(":held"):
                        continue
                    if i in record.deletes:
                        there.discard(key)
                    else:
                        there.add(key)
                        found.setdefault(record.first, {})[key.rpartition("/")[2].split(":")[0]] = len(there)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["lock", pytest.param("election", marks=pytest.mark.long)])
def test_each_token_of_a_lock_or_election_belongs_to_one_holder(pair: ProcessPair, tmp_path: Path, kind: str) -> None:
    with Torment(pair, kind, tmp_path / "resource") as torment:
        torment.run()
    written, given = torment.rows(), held(pair)
    assert [token for token, _ in written] == sorted(token for token, _ in written)
    holders: dict[int, set[str]] = {}
    for token, name in written:
        holders.setdefault(token, set()).add(name)
    assert all(len(names) == 1 for names in holders.values()), "a token is one holder's"
    assert {name for _, name in written} == {f"w{i}" for i in range(WORKERS)}, "each had its turn"
    assert all(given[token] == {name: 1} for token, name in written), "and the servers had given it, to it alone"


@pytest.mark.timeout(600)
def test_a_semaphore_never_has_more_holders_than_its_limit(pair: ProcessPair, tmp_path: Path) -> None:
    with Torment(pair, "semaphore", tmp_path / "resource") as torment:
        torment.run()
    written, given = torment.rows(), held(pair)
    assert all(name in given[token] for token, name in written), "the servers gave each token that was used"
    assert len(set(written)) == len(written), "and each once"
    assert max(n for names in given.values() for n in names.values()) == LIMIT, "two at a time, and never three"


@pytest.mark.timeout(600)
def test_each_addition_to_a_counter_counts_once_over_kills(pair: ProcessPair, tmp_path: Path) -> None:
    with Torment(pair, "counter", tmp_path / "sums") as torment:
        torment.run()
    sums = [total for total, _ in torment.rows()]
    assert len(set(sums)) == len(sums), "no sum was told to two"
    unsaid = sum(worker.log.read_text().count("error") for worker in torment.workers)
    with Clone(pair.servers, KEY.rpartition("/")[0] + "/") as clone:
        clone.wait_until_synced(60)
        total = Counter(clone, KEY).add(0, 60)
    assert max(sums) <= total and len(sums) <= total <= len(sums) + torment.kills + WORKERS + unsaid


@pytest.mark.timeout(600)
def test_a_party_drops_a_dead_or_stopped_member_until_the_member_returns(pair: ProcessPair, tmp_path: Path) -> None:
    with Torment(pair, "party", tmp_path / "joined") as torment, Clone(pair.servers, "/recipe/") as clone:
        clone.wait_until_synced(60)
        party = Party(clone, PATH, "looks-on")
        everybody = {f"w{i}" for i in range(WORKERS)}

        def becomes(names: set[str]) -> None:
            until(lambda: set(party) == names, f"{sorted(names)}, not {sorted(party)}")

        becomes(everybody)
        torment.workers[0].process.send_signal(signal.SIGSTOP)
        becomes(everybody - {"w0"})
        torment.workers[1].kill()
        becomes(everybody - {"w0", "w1"})
        torment.workers[0].process.send_signal(signal.SIGCONT)
        becomes(everybody - {"w1"})
        active = pair.active()
        assert active is not None
        active.kill()
        torment.workers[1].start()
        becomes(everybody)
        torment.workers[2].kill()
        becomes(everybody - {"w2"})


def chp(pair: ProcessPair, *args: str, **more: object) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CHP_SERVERS": ",".join(pair.servers)}
    argv = [sys.executable, "-m", "chp_client.cli", *args]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_lock_runs_a_command_under_the_lock_and_returns_its_exit_code(pair: ProcessPair) -> None:
    done = chp(pair, "lock", "/locks/a", "--name", "me", "--", "sh", "-c", 'echo "$CHP_LOCK_TOKEN"; exit 7')
    assert done.returncode == 7 and int(done.stdout) > 0, done.stderr
    inner = [sys.executable, "-m", "chp_client.cli", "lock", "/locks/a"]
    shown = chp(pair, "lock", "/locks/a", "--name", "me", "--", *inner)
    assert (shown.returncode, shown.stdout) == (0, "me\thas it\n"), shown.stderr
    refused = chp(pair, "lock", "/locks/a", "--name", "me", "--", *inner, "--wait", "200ms", "--", "true")
    assert refused.returncode == 1 and "me has it" in refused.stderr
    assert chp(pair, "lock", "/locks/a").returncode == 1
    missing = chp(pair, "lock", "/locks/a", "--", "/no/such/command")
    assert missing.returncode == 1 and "/no/such/command" in missing.stderr
    wrong = chp(pair, "lock", "locks", "--", "true")
    assert wrong.returncode == 2 and "begins with '/'" in wrong.stderr


def test_elect_holds_the_leadership_while_its_command_runs(pair: ProcessPair) -> None:
    shown = [sys.executable, "-m", "chp_client.cli", "elect", "/leader", "--json"]
    done = chp(pair, "elect", "/leader", "--name", "host-1", "--", *shown)
    assert done.returncode == 0 and '"holder":"host-1"' in done.stdout.replace(" ", ""), done.stderr
