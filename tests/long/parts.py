"""The table of the long proofs: each part has a name, a sentence and a command that ends within a bound.

In a command `{python}` is the interpreter of this process and `{state}` is a directory that belongs to the part. A part
that was stopped goes on where it was, from what it left in that directory:

    {state}/done      A line for each round: its name, a tab, and "ok", "skipped" or what went wrong. The tests of
                      a part write it with `NOTED`; `tests.sim` and `tests.process.soak` write it with `--done`.
    {state}/...       Other files with which the part goes on. Parts with the same `shares` have one directory.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTES = 20.0
# The command that runs the tests of a part. Each test is a round.
NOTED = "{python} -m pytest -q -p tests.long.noted --done {state}/done -m long"
SEEDS_A_PART = 1000
# The files that the simulator does not run. It runs the cores, and no Clone, program or socket around them.
SHELLS = (
    *(f"client/chp_client/{name}" for name in (
        "agent/", "checks.py", "cli/", "clientfile.py", "clone/", "codecs.py", "gateway/", "mount_table.py", "mounted/",
        "port/", "recipes/", "recording/", "spark/", "topics/", "typed.py",
    )),
    "client/pyspark_chp/", "client/pytest_chp/",
    *(f"server/chp_server/{name}" for name in ("main.py", "ports/", "shell/", "store/sql/", "testing.py", "tools/")),
)  # fmt: skip
# Only the seeds of sim-copies have replicas.
REPLICAS = "server/chp_server/core/replica/"


@dataclass(frozen=True)
class Part:
    """A part of the long proofs."""

    name: str
    about: str
    command: str
    minutes: float = MINUTES
    # The name of the directory of the part; "" stands for the name of the part.
    shares: str = ""
    # The command that shows a round that failed, with `{round}` for its name.
    again: str = ""
    # The beginnings of the paths of files that the part does not run. A change of such a file leaves its proof valid.
    spares: tuple[str, ...] = ()
    # True if the command tries failed rounds once more, after all others.
    retries: bool = False

    @property
    def notes_rounds(self) -> bool:
        """True if the command notes its rounds in `{state}/done`; another command is one round."""
        return "{state}/done" in self.command


def _seeds(name: str, about: str, start: int, count: int, ways: str = "") -> Part:
    spares = SHELLS if "--copies" in ways else (*SHELLS, REPLICAS)
    command = f"{{python}} -m tests.sim --keep-going --done {{state}}/done --seeds {count} --from {start}{ways}"
    show = f"python -m tests.sim{ways} --show {{round}} --shrink"
    return Part(name, f"{count:,} seeds of the simulator from {start:,}{about}", command, again=show, spares=spares)


PARTS = (
    *(_seeds(f"sim-{n + 1}", "", n * SEEDS_A_PART, SEEDS_A_PART) for n in range(20)),
    _seeds("sim-arbiter", ", each with an arbiter", 20_000, 500, " --arbiter"),
    _seeds("sim-consumers", ", most of them with groups", 20_000, 500, " --consumers"),
    _seeds("sim-splits", ", with split clients", 20_000, 500, " --splits"),
    _seeds("sim-copies", ", a quarter of them with losses of two of three disks", 20_000, 2000, " --copies"),
    Part("damages", "a thousand damaged journals", f"{NOTED} tests/damage"),
    Part(
        "kills", "a hundred rounds of kill -9, with all sets counted",
        "{python} -m tests.process.soak --rounds 100 --batch 20 --done {state}/done --output {state}/soak.json",
    ),
    Part("cuts", "rounds of cut links, with linearizable histories", f"{NOTED} tests/net/test_net_histories.py"),
    Part("cuts-arbiter", "each cut between a pair and its arbiter", f"{NOTED} tests/net/test_arbiter_cuts.py"),
    Part("histories", "rounds of kills, stops and switches, linearizable", f"{NOTED} tests/process/test_histories.py"),
    Part("topics", "topics and groups under kills and stops", f"{NOTED} tests/process/test_topic_histories.py"),
    Part("topics-cuts", "topics and groups under cut links", f"{NOTED} tests/net/test_topic_cuts.py"),
    Part(
        "groups", "members of groups that are killed, and messages that kill members",
        f"{NOTED} tests/process/test_consumers_killed.py tests/process/test_consumers_die.py",
    ),
    Part(
        "scheduled", "a million scheduled messages, and twenty kills of the active while they are due",
        f"{NOTED} tests/process/test_schedule_killed.py",
    ),
    Part("reads", "a read by parts whose active is killed", f"{NOTED} tests/process/test_reads_killed.py"),
    Part(
        "replicas", "twenty kills of replicas and of the active, under readers",
        f"{NOTED} tests/process/test_replicas_killed.py",
    ),
    Part("subscribers", "subscribers that leave a stopped server", f"{NOTED} tests/process/test_subscribers.py"),
    Part("busy", "a pair on a machine without idle time", f"{NOTED} tests/process/test_busy_machine.py"),
    Part("recipes", "an election whose candidates are killed", f"{NOTED} tests/process/test_recipes.py"),
    Part("lowest", "the lowest versions of what we depend on", f"{NOTED} tests/process/test_lowest_versions.py"),
    Part("gateway", "many readers of events, and generated requests", f"{NOTED} tests/wire"),
    *(
        Part(f"python-{version}", f"unit, scenario, wire and process tests on Python {version}, if it is installed",
             f"{{python}} -m tests.interpreters {version} --done {{state}}/done", retries=True)
        for version in ("3.12", "3.13", "3.14", "3.14t")
    ),
    Part("spark", "a cluster of Spark, its secrets, and kills of a query with foreach", f"{NOTED} tests/spark"),
    *(
        Part(
            f"spark-{version}", f"batches, streams and topics on PySpark {version}",
            f"{{python}} -m tests.spark.versions {version} -- -p tests.long.noted --done {{state}}/done", retries=True,
        )
        for version in ("4.0", "4.1", "4.2")
    ),
    *(
        Part(
            f"everything-{n}", f"everything together for 17 minutes, on the pair of the other two parts; faults {n}",
            f"{{python}} -m tests.process.everything --minutes 17 --seed {n} --base {{state}}", shares="everything",
        )
        for n in (1, 2, 3)
    ),
    *(
        Part(
            f"endurance-{n}", "a steady load for 18 minutes, on the journals of the other two parts",
            "{python} -m tests.process.endurance --minutes 18 --base {state}", shares="endurance",
        )
        for n in (1, 2, 3)
    ),
)  # fmt: skip
