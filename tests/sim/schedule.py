"""The plans of seeds: lists of commands that say which clients there are, what they do, and what goes wrong.

Each seed has a temper, which names its kinds of faults. Most seeds have one kind, some have every kind. A `gentle` seed
has only crashes, so even the acknowledgements of a lone server must be linearizable. The time between commands is
short, so that faults meet calls. A list ends with `settle`. Some lists then crash both servers and settle again.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

from . import bursts
from .bursts import KEYS, LEASE_KEYS, POINTS, TX_KEYS, Burst

SETTLE_S = 15
# Plans whose members die of messages settle within this time. Each such message kills several members in turn, and each
# death lasts the ttl of the member's lease.
DEATHS_S = 240
# A healthy pair that loses a server must serve all clients again within this time.
FAIL_S = 10
TTL_KEYS = ("/t/1", "/t/2")
MANY = tuple(f"/l/{i}" for i in range(1, 10))
ENDING_SHARE = 0.5
# The share of seeds whose programs publish messages.
TOPICS_SHARE = 0.5
TEMPERS = ("gentle", "crash", "cut", "loss", "pause", "clock", "reset", "all", "all")
# The share of seeds whose servers ask an arbiter.
ARBITER_SHARE = 0.15
# The share of seeds whose journals lose their ends.
SHORTEN_SHARE = 0.25
# The share of seeds with a stranger, which forges messages from what it hears.
STRANGER_SHARE = 0.3
# The share of seeds whose servers compare their contents all the time.
SCRUB_SHARE = 0.4
# The share of seeds in which other programs fill the disks.
DISK_SHARE = 0.2
# The share of seeds whose clients have keys, and whose operator grants and revokes rights.
ACCESS_SHARE = 0.3
GRANTED = ("", "", "/a/", "/b/", "/lin/", "/l/", "/t/", "/p/", "/.chp/topics/")
# The share of seeds with cuts in which each server has half of the clients, and a client's link heals first.
SPLIT_SHARE = 0.3
# The share of seeds without rules whose programs share a topic in groups.
CONSUMERS_SHARE = 0.2
# The share of seeds without rules that end with full disks, which refuse the acknowledgements of groups.
REFUSED_GROUPS_SHARE = 0.05
# The share of seeds without mistakes that have a reader of the feed.
FEED_SHARE = 0.2
# The share of seeds whose operators make mistakes.
MISTAKE_SHARE = 0.25
# The share of seeds in which an operator forces a server to begin, although it would wait for the other server.
FORCE_SHARE = 0.3
# Each burst, the tempers of the seeds that may have it, its share of these seeds, and how often it comes at most.
# Disks refuse sets only in seeds in which at most one server is active.
BURSTS: tuple[tuple[Burst, tuple[str, ...], float, int], ...] = (
    (bursts.both_stopped, ("pause", "all"), 0.15, 2),
    (bursts.healed, ("cut", "all"), 0.15, 1),
    (bursts.full_disks, ("crash",), 0.4, 2),
    (bursts.key_removed, TEMPERS, 0.15, 1),
    (bursts.flooded, TEMPERS, 0.1, 1),
)
# Bursts that were added later. They have a generator of their own, so that seeds keep the bursts of the table above.
LATER_BURSTS: tuple[tuple[Burst, tuple[str, ...], float, int], ...] = (
    (bursts.intruded, TEMPERS, 0.08, 1),
    (bursts.crowded, TEMPERS, 0.05, 1),
    (bursts.held, TEMPERS, 0.03, 1),
)
# Offsets for the seeds of the two generators. They were chosen so that the seeds that show planted bugs (seen_in.json)
# have no bursts.
BURSTS_FROM, LATER_FROM = 29_067, 31_081
# The bursts that need clients with keys.
OF_KEYS = (bursts.key_removed, bursts.flooded, bursts.intruded)
# The bursts that need members of groups.
OF_GROUPS = (bursts.full_disks, bursts.key_removed, bursts.intruded, bursts.held)
# The share of seeds with a busy machine, on which a server gets no processor time for seconds.
SLOW_SHARE = 0.15
# The share of seeds in which the map gets each commit and each followed record item by item, with one item a turn.
LATE_SHARE = 0.25


@dataclass
class Plan:
    """The plan of a seed: its commands, and the settings of its world."""

    seed: int
    temper: str
    commands: list[str]
    # True if sets that are sent while a server is down arrive when the server is back.
    lingering_sets: bool
    snapshot_every: int
    log_records: int = 100_000
    chunk_items: int = 8192
    part_bytes: int = 1 << 20
    ending_keys: int = 4096
    slice_bytes: int = 2 << 20
    # 1 if every commit counts as large, and the map gets large commits late.
    late: int = 0

    @property
    def line(self) -> str:
        """The plan without its commands, as the `seed` line of a scenario has it."""
        return (
            f"seed {self.seed} {self.temper} lingering={self.lingering_sets:d} snapshots={self.snapshot_every}"
            f" log={self.log_records} chunk={self.chunk_items} part={self.part_bytes} ending={self.ending_keys}"
            f" slice={self.slice_bytes} late={self.late}"
        )

    @staticmethod
    def of(line: str) -> Plan:
        """Return the plan of a `seed` line. The scenario itself has the commands."""
        _, seed, temper, *words = line.split()
        lingering, *numbers = (int(word.partition("=")[2]) for word in words)
        return Plan(int(seed), temper, [], bool(lingering), *numbers)


def plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(seed * 7919 + 1)
    temper = rng.choice(TEMPERS)
    maker = _Maker(rng, temper)
    commands = maker.begin() + [command for _ in range(rng.randint(25, 70)) for command in maker.next()]
    commands.append(f"settle {SETTLE_S}")
    if rng.random() < 0.3:
        commands += ["crash P", "crash B", "tick 0.2", f"settle {SETTLE_S}"]
    made = Plan(
        seed,
        temper,
        commands,
        rng.random() < 0.4,
        rng.choice((0, 0, 7, 30)),
        rng.choice((100_000, 5)),
        rng.choice((8192, 2)),
        rng.choice((1 << 20, 1 << 20, 30)),
        slice_bytes=1 if seed % 2 else 2 << 20,
        late=int(random.Random(seed * 104_729 + 17).random() < LATE_SHARE),
    )
    if temper != "gentle" and random.Random(seed * 104_729 + 3).random() < ARBITER_SHARE:
        made = with_arbiter(made)
    if temper != "gentle" and random.Random(seed * 104_729 + 9).random() < SHORTEN_SHARE:
        made = with_journals_cut_short(made)
    if random.Random(seed * 104_729 + 7).random() < SCRUB_SHARE:
        made.commands.insert(0, "scrub 1")
    if temper != "gentle" and random.Random(seed * 104_729 + 13).random() < DISK_SHARE:
        made = with_full_disks(made)
    made = with_messages(with_endings(made))
    forged = random.Random(seed * 104_729 + 11)
    if forged.random() < STRANGER_SHARE:
        for _ in range(forged.randint(1, 6)):
            made.commands.insert(
                forged.randint(len(made.commands) // 4, len(made.commands)), f"forge {forged.choice('PB')}"
            )
    if temper != "gentle" and random.Random(seed * 104_729 + 19).random() < MISTAKE_SHARE:
        made = with_mistakes(made)
    if random.Random(seed * 104_729 + 29).random() < ACCESS_SHARE:
        made = with_rules(made)
    elif not _has_mistakes(made) and random.Random(seed * 104_729 + 37).random() < FEED_SHARE:
        made = with_feed(made)
    made = _with_some_groups(made)
    made = _with_slowness(made)
    made = _with_a_share_of_splits(made)
    made = _with_some_bursts(made)
    if rng.random() < 0.3:
        made.commands += [f"fail {rng.choice('PB')} {FAIL_S}", f"settle {SETTLE_S}"]
    return made


def _with_some_bursts(made: Plan) -> Plan:
    """Return the plan, with bursts for some seeds. Bursts have generators of their own, so other seeds stay."""
    for drawn, offset in ((BURSTS, BURSTS_FROM), (LATER_BURSTS, LATER_FROM)):
        rng = random.Random(made.seed * 104_729 + offset)
        for burst, tempers, share, most in drawn:
            if rng.random() < share and made.temper in tempers and (made.commands[0] == "keyed") >= (burst in OF_KEYS):
                made = with_bursts(made, burst, most)
    return made


def with_bursts(made: Plan, burst: Burst, most: int = 3) -> Plan:
    """Return the plan with one to `most` bursts of a kind."""
    rng = random.Random(made.seed * 104_729 + 103)
    if burst is bursts.crowded and made.commands[0] == "keyed":
        return made
    if burst in OF_KEYS and made.commands[0] != "keyed":
        # A reader of the feed has no key.
        made = with_rules(replace(made, commands=[command for command in made.commands if command != "feed f1"]))
    if burst in OF_GROUPS:
        made = with_consumers(made, among_rules=True)
    out = list(made.commands)
    names = [command.split()[1] for command in out if command.startswith("client")]
    early = max((i for i, command in enumerate(out) if command.startswith("client")), default=0) + 3
    for _ in range(rng.randint(1, most)):
        end = next((i for i, command in enumerate(out) if command.startswith("settle")), len(out))
        at = rng.randint(min(early, end), end)
        out[at:at] = burst(rng, names)
    if burst is bursts.crowded:
        out.insert(1, f"crowd {rng.randint(5, 7)}")
    if burst is bursts.flooded and "flooder" not in out:
        out.insert(1, "flooder")
    if burst is bursts.intruded and not any(command.startswith("intruder") for command in out):
        out.insert(1, f"intruder {rng.choice(('reads', 'takes'))}")
    return replace(made, commands=out)


def _with_slowness(made: Plan) -> Plan:
    """Return the plan, with slow machines or an operator's force for some seeds."""
    if made.commands[0] != "arbiter" and random.Random(made.seed * 104_729 + 73).random() < FORCE_SHARE:
        made = with_a_persons_word(made)
    slow = made.temper != "gentle" and random.Random(made.seed * 104_729 + 71).random() < SLOW_SHARE
    return with_slow_machines(made) if slow else made


def _with_some_groups(made: Plan) -> Plan:
    if random.Random(made.seed * 104_729 + 67).random() < CONSUMERS_SHARE:
        made = with_consumers(made)
    if random.Random(made.seed * 104_729 + 79).random() < REFUSED_GROUPS_SHARE:
        made = with_refused_groups(made)
    return made


def _has_mistakes(made: Plan) -> bool:
    return any(command.split()[0] in ("renew", "foreign", "misplace") for command in made.commands)


def with_feed(made: Plan) -> Plan:
    """Return the plan with a reader of the feed, from early on.

    The reader has no keys and knows one store, so plans with rules or mistakes have none.
    """
    rng = random.Random(made.seed * 104_729 + 41)
    at = rng.randint(len(made.commands) // 4, len(made.commands) // 2)
    return replace(made, commands=[*made.commands[:at], "feed f1", *made.commands[at:]])


def with_image_reads(made: Plan) -> Plan:
    """Return the plan with two readers of images, from early on; half of the plans have large commits."""
    at = len(made.commands) // 6
    readers = ["images i1", *made.commands[at : at + 3], "images i2"]
    return replace(made, commands=[*made.commands[:at], *readers, *made.commands[at + 3 :]], late=made.seed % 2)


def with_endings(made: Plan) -> Plan:
    """Return the plan with slow expiry, in steps of one or two keys, for some seeds.

    Now and then a lease of many keys ends, and a fault comes meanwhile.
    """
    rng = random.Random(made.seed * 104_729 + 17)
    if rng.random() > ENDING_SHARE:
        return made
    out = list(made.commands)
    for n in range(rng.randint(1, 3)):
        client, lease = "c1", f"M{n}"
        fault = rng.choice((("tick 0.05",), ("crash P", "tick 1.5", "start P"), ("crash B", "tick 1.5", "start B")))
        at = rng.randint(len(out) // 4, len(out) - 1)
        out[at:at] = [
            f"lease {client} {lease} {rng.choice((900, 3000))}", f"set {client} {' '.join(MANY)} lease={lease}",
            f"tick {rng.choice((0.1, 0.5))}", rng.choice((f"unlease {client} {lease}", f"forsake {client} {lease}")),
            f"tick {rng.choice((0.01, 0.02, 1.0))}", f"set {client} {rng.choice(MANY)}",
            *(fault if made.temper != "gentle" else ()),
        ]  # fmt: skip
    return replace(made, commands=out, ending_keys=rng.choice((1, 2)))


def with_messages(made: Plan) -> Plan:
    """Return the plan with published messages for some seeds. Now and then a topic keeps only a few."""
    rng = random.Random(made.seed * 104_729 + 23)
    if rng.random() > TOPICS_SHARE:
        return made
    out = [re.sub(r"^tx (\w+) ", r"tx \1 +message ", command) for command in made.commands]
    for _ in range(rng.randint(4, 25)):
        out.insert(rng.randint(len(out) // 5, len(out) - 1), f"publish c1 {rng.choice('tuv')} {rng.choice((1, 1, 3))}")
    if rng.random() < 0.4:
        out.insert(len(out) // 4, f"topic c1 v {rng.choice((1, 4))}")
    if rng.random() < 0.2:
        out.insert(rng.randint(len(out) // 2, len(out) - 1), "topic c1 u")
    return replace(made, commands=out)


def with_rules(made: Plan) -> Plan:
    """Return the plan with keys and rules.

    Each client may do everything at first, and then now and then less or more.
    """
    rng = random.Random(made.seed * 104_729 + 31)
    clients = [command.split()[1] for command in made.commands if command.startswith("client")]
    end = next((i for i, command in enumerate(made.commands) if command.startswith("settle")), 0)
    began = max(i for i, command in enumerate(made.commands[:end]) if command.startswith("client")) + 1
    out = ["keyed", *made.commands[:began]]
    for command in made.commands[began:end]:
        out.append(command)
        if rng.random() < 0.03:
            out.append("access open")
        if rng.random() < 0.1:
            verb, what = rng.choice(("grant", "revoke")), rng.choice(("read", "write", "deny-read", "deny-write"))
            out.append(f"access {verb} {rng.choice(clients)} {what} {rng.choice(GRANTED)}")
        # A crash comes right after the answer to a change of the rules.
        if rng.random() < 0.02 and made.temper != "gentle":
            out += ["access open", f"tick {rng.choice((0.002, 0.02, 0.06))}", f"crash {rng.choice('PB')}", "tick 1.5",
                    "start P", "start B"]  # fmt: skip
    return replace(made, commands=out + made.commands[end:])


def with_consumers(made: Plan, *, among_rules: bool = False) -> Plan:
    """Return the plan with programs that share topic t in one or two groups. They leave, stop, and come back."""
    rng = random.Random(made.seed * 104_729 + 31)
    has_some = any(command.startswith("consume ") for command in made.commands)
    # Rules also take rights from members.
    if has_some or (made.commands[0] == "keyed" and not among_rules):
        return made
    out = list(made.commands)
    names = [command.split()[1] for command in out if command.startswith("client")]
    early = max(i for i, command in enumerate(out[: len(out) // 3]) if i < 3 or command.startswith(("client", "start")))
    end = next((i for i, command in enumerate(out) if command.startswith("settle")), len(out)) - 1
    for name in names:
        out.insert(rng.randint(early + 1, max(early + 1, end // 2)), f"consume {name} t {rng.choice('ggh')}")
    for _ in range(rng.randint(5, 25)):
        at, name = rng.randint(early + 1, max(early + 1, end)), rng.choice(names)
        out.insert(at, f"publish {name} t {rng.choice((1, 2, 5))}")
        if rng.random() < 0.15:
            stopped = rng.choice((("tick 1.0",), ("tick 4.0",), (f"crash {name}", "tick 0.3", f"start {name}")))
            pause = [f"pause {name}", *stopped, f"resume {name}"] if len(stopped) == 1 else list(stopped)
            out[at:at] = rng.choice(([f"leave {name}"], pause if made.temper != "gentle" else []))
    return replace(made, commands=out)


def with_schedules(made: Plan) -> Plan:
    """Return the plan with programs that schedule messages, on conditions or not, and cancel some."""
    rng = random.Random(made.seed * 104_729 + 97)
    out = list(made.commands)
    names = [command.split()[1] for command in out if command.startswith("client")]
    early = max(i for i, command in enumerate(out[: len(out) // 3]) if i < 3 or command.startswith(("client", "start")))
    end = next((i for i, command in enumerate(out) if command.startswith("settle")), len(out)) - 1
    for _ in range(rng.randint(10, 40)):
        at, name = rng.randint(early + 1, max(early + 1, end)), rng.choice(names)
        key = rng.choice(("", "", " /a", " /b", " /free"))
        out.insert(at, f"schedule {name} {rng.choice('tuv')} {rng.choice((0.0, 0.2, 1.0, 3.0, 8.0, 60.0))}{key}")
        if rng.random() < 0.3:
            out.insert(rng.randint(at + 1, max(at + 1, end)), f"unschedule {name}")
    return replace(made, commands=out)


def with_replicas(made: Plan) -> Plan:
    """Return the plan with replicas, which some clients have in place of the pair, or beside a server of the pair.

    Plans with mistakes, splits or removed keys stay as they are.
    """
    keyed = made.commands[0] == "keyed"
    removes_keys = any(command.startswith("unkey ") for command in made.commands)
    if removes_keys or _has_mistakes(made) or any(command.startswith("split") for command in made.commands):
        return made
    rng = random.Random(made.seed * 104_729 + 131)
    lines = ["replica R1", "replica R2", *rng.choice(([], ["replica R3 R1"], ["replica R3 R2 R1"]))]
    names = [line.split()[1] for line in lines]
    # A replica has its keys from the beginning.
    out = [*made.commands[:keyed], *lines, *(f"start {name}" for name in names)]
    moved: set[str] = set()
    for command in made.commands[keyed:]:
        # A client that is at replicas has no connections to the pair.
        if command.startswith("reset ") and command.split()[1].partition("-")[0] in moved:
            continue
        out.append(command)
        if command.startswith("client ") and rng.random() < 0.8:
            name = command.split()[1]
            # The client gets two servers, or a longer list from which it has to choose: some replicas, and the pair.
            two = rng.sample([*names, rng.choice("PB")], 2)
            several = [*rng.sample(names, rng.randint(1, len(names))), "P", "B"]
            found = two if " model" in command else rng.choice((two, several))
            out.append(f"at {name} {' '.join(found)}")
            moved.add(name)
    end = next((i for i, command in enumerate(out) if command.startswith("settle")), len(out))
    early = max(i for i, command in enumerate(out[:end]) if command.startswith(("client", "at "))) + 1
    for _ in range(rng.randint(2, 12)):
        name, other, at = rng.choice(names), rng.choice("PB"), rng.randint(min(early, end), end)
        out[at:at] = rng.choice(
            (
                [f"crash {name}", f"tick {rng.choice((0.05, 0.5, 2.0))}", f"start {name}"],
                [f"crash {name} at {rng.choice(POINTS)}", "tick 0.3", f"start {name}"],
                [f"cut {other}>{name}", f"tick {rng.choice((0.3, 1.5, 4.0))}", f"heal {other}>{name}"],
                [f"cut {name}>{other}", f"tick {rng.choice((0.3, 1.5, 4.0))}", f"heal {name}>{other}"],
                [f"pause {name}", f"tick {rng.choice((0.3, 1.5, 4.0))}", f"resume {name}"],
                [f"wipe {name}", "tick 0.2", f"start {name}"],
                [f"start {name}"],
            )
            if made.temper != "gentle"
            else ([f"crash {name}", "tick 0.5", f"start {name}"], [f"start {name}"])
        )
    if rng.random() < 0.4:
        at = rng.randint(min(early, end), end)
        out[at:at] = [f"crash {rng.choice('PB')}", f"crash {rng.choice(names)}", "tick 1.5", "start P", "start B"]
    return replace(made, commands=out)


def with_copies(made: Plan) -> Plan:
    """Return the plan with replicas, some of which are further copies, and with losses of two disks of three.

    Plans with rules, an arbiter or a reader stay as they are. So do plans that lose disks in other ways, and plans that
    `with_replicas` does not change.
    """
    words = {command.split()[0] for command in made.commands}
    followed = with_replicas(made)
    if followed is made or words & {"keyed", "arbiter", "shorten", "renew", "wipe", "feed", "images"}:
        return made
    rng = random.Random(made.seed * 104_729 + 137)
    copies = rng.choice((["R1"], ["R1", "R2"]))
    out = ["copies 3"]
    for command in followed.commands:
        verb, *rest = command.split()
        if verb == "replica" and rest[0] in copies:
            out.append(f"replica {rest[0]} P B confirms")
        elif verb != "fail" and not (verb == "wipe" and rest[0] in copies):
            out.append(command)
    end = next(i for i, command in enumerate(out) if command.startswith("settle"))
    begin = max(i for i, command in enumerate(out[:end]) if command.startswith(("client", "at ", "start"))) + 1
    at = rng.randint((min(begin, end) + end) // 2, end)
    clients = [command.split()[1] for command in out if command.startswith("client ")]
    out[at:at] = _loss(rng, clients, copies)
    out += [*_loss(rng, clients, copies), f"settle {SETTLE_S}"]
    return replace(made, commands=out)


def _loss(rng: random.Random, clients: list[str], copies: list[str]) -> list[str]:
    """Return commands that lose two of three disks while sets are under way. A copy may hear these sets late."""
    # A second copy is a fourth disk, so that only the loss of both servers leaves too few.
    one = rng.choice(copies)
    pair = rng.choice((("P", "B"), ("P", "B"), ("P", one), ("B", one))) if len(copies) == 1 else ("P", "B")
    late = rng.choice((
        [], [f"busy {one} {rng.choice((0.2, 0.6))} at sync"], [f"pause {one}"], [f"cut P>{one}", f"cut B>{one}"],
    ))  # fmt: skip
    sets = [f"set {rng.choice(clients)} /{rng.choice('abcdef')}" for _ in range(rng.randint(2, 6))]
    sets += [f"publish {rng.choice(clients)} {rng.choice('tuv')} 2" for _ in range(rng.randint(0, 3))]
    rng.shuffle(sets)
    spread = [line for each in sets for line in (each, f"tick {rng.choice((0.0, 0.005, 0.02, 0.05))}")]
    healed = [f"resume {one}", f"heal P>{one}", f"heal B>{one}"]
    start = [f"start {name}" for name in ("P", "B", *copies)]
    return [
        *late,
        *spread,
        f"tick {rng.choice((0.0, 0.05, 0.2))}",
        f"lose {' '.join(pair)}",
        *healed,
        "tick 0.5",
        *start,
    ]


def _with_a_share_of_splits(made: Plan) -> Plan:
    cut = made.temper in ("cut", "all") and random.Random(made.seed * 104_729 + 71).random() < SPLIT_SHARE
    return with_splits(made) if cut else made


def with_splits(made: Plan) -> Plan:
    """Return the plan with splits: each server has half of the clients, and a client's link heals before the peers'
    link.

    When its link heals, the client has batches that its first server has done, but whose answers it has not heard.
    """
    if any(command.startswith("split") for command in made.commands):
        return made
    rng = random.Random(made.seed * 104_729 + 73)
    out = list(made.commands)
    names = [command.split()[1] for command in out if command.startswith("client")]
    early = max((i for i, command in enumerate(out) if command.startswith("client")), default=0) + 3
    for _ in range(rng.randint(1, 3)):
        end = next((i for i, command in enumerate(out) if command.startswith("settle")), len(out))
        at = rng.randint(min(early, end), end)
        out[at:at] = bursts.split(rng, names)
    return replace(made, commands=out)


def with_journals_cut_short(made: Plan) -> Plan:
    """Return the plan with journals that may lose their end at a crash. Now and then the server then starts alone.

    A plan with an arbiter stays as it is, for the reason that `with_arbiter` gives.
    """
    if made.commands[0] == "arbiter":
        return made
    rng = random.Random(made.seed * 104_729 + 11)
    out: list[str] = []
    for command in made.commands:
        out.append(command)
        if command in ("crash P", "crash B") and rng.random() < 0.5:
            name = command[-1]
            other = "B" if name == "P" else "P"
            out.append(f"shorten {name} {rng.randint(1, 6)}")
            if rng.random() < 0.5:
                out += [f"crash {other}", f"start {name}", f"tick {rng.choice((1.0, 4.5))}", f"start {other}"]
    return replace(made, commands=out)


def with_arbiter(made: Plan) -> Plan:
    """Return the plan with an arbiter, and with cuts among the arbiter and the servers.

    No journal loses its end. Otherwise the arbiter's set might name only the server that lost records, and an operator
    would have to decide.
    """
    rng = random.Random(made.seed * 104_729 + 5)
    out, clients = ["arbiter"], []
    end = next((i for i, command in enumerate(made.commands) if command.startswith("settle")), 0)
    for command in made.commands[:end]:
        if command.startswith("shorten"):
            continue
        out.append(command)
        if command.startswith("client"):
            clients.append(command.split()[1])
        name = rng.choice("PB")
        if rng.random() < 0.04:
            out += [
                f"doubt {name}",
                f"tick {rng.choice((0.3, 1.0, 2.5)):.1f}",
                *([f"trust {name}"] * rng.randint(0, 1)),
            ]
        if rng.random() < 0.04:
            out += [f"pause {name} at sync", f"tick {rng.choice((0.3, 1.7, 5.0)):.1f}", f"resume {name}"]
        if clients and rng.random() < 0.04 and made.temper in ("cut", "all"):
            out += _some_of_three_links(rng, clients)
    return replace(made, commands=out + made.commands[end:])


def _some_of_three_links(rng: random.Random, clients: list[str]) -> list[str]:
    """Return commands that cut some of the links among servers and arbiter, while clients set and count."""
    to_p, to_b = (f"doubt {name}{rng.choice(('', '.up', '.down'))}" for name in "PB")
    links = (("cut P>B", "heal P>B"), ("cut B>P", "heal B>P"), (to_p, "trust P"), (to_b, "trust B"))
    chosen = rng.sample(links, rng.randint(1, 4))
    out = [cut for cut, _ in chosen]
    for _ in range(rng.randint(1, 4)):
        client = rng.choice(clients)
        out += [f"tick {rng.choice((0.1, 0.6, 1.5)):.1f}", f"cset {client} /lin/x", f"set {client} {rng.choice(KEYS)}"]
    rng.shuffle(chosen)
    return [*out, f"tick {rng.choice((0.1, 3.5)):.1f}", *(heal for _, heal in chosen)]


def with_full_disks(made: Plan) -> Plan:
    """Return the plan with disks that other programs fill, nearly or to the last byte, and empty again. Clients sync.

    Where both servers may be active, the disks are never so full that a server refuses sets. The number of a
    session could not tell that one server refused a batch which the other server has done.
    """
    rng, syncs = random.Random(made.seed * 104_729 + 11), random.Random(made.seed * 104_729 + 71)
    states = ("low", "tight", "little", "read-only") if made.temper == "crash" else ("tight", "none", "none")
    out: list[str] = []
    clients: list[str] = []
    end = next((i for i, command in enumerate(made.commands) if command.startswith("settle")), 0)
    for command in made.commands[:end]:
        out.append(command)
        clients += command.split()[1:2] if command.startswith("client") else []
        if rng.random() < 0.06:
            out.append(f"disk {rng.choice('PB')} {rng.choice(states)}")
        if rng.random() < 0.05:
            out.append(f"disk {rng.choice('PB')} room")
        if clients and command.startswith(("set", "del", "tick")) and syncs.random() < 0.15:
            out.append(f"sync {syncs.choice(clients)}")
    return replace(made, commands=[*out, "disk P room", "disk B room", *made.commands[end:]])


def with_a_persons_word(made: Plan) -> Plan:
    """Return the plan with an operator who now and then forces a server to begin.

    The server waits, because a client has seen a higher epoch.
    """
    rng = random.Random(made.seed * 104_729 + 73)
    end = next((i for i, command in enumerate(made.commands) if command.startswith("settle")), 0)
    out = []
    for command in made.commands[:end]:
        out.append(command)
        if command in ("start P", "start B") and rng.random() < 0.4:
            out += [f"tick {rng.choice((1.4, 3.6, 3.6))}", f"force {command[-1]}"]
    return replace(made, commands=out + made.commands[end:])


def with_slow_machines(made: Plan) -> Plan:
    """Return the plan on a busy machine: a server gets no time for seconds, or restarts beside a slow one."""
    rng = random.Random(made.seed * 104_729 + 71)
    end = next((i for i, command in enumerate(made.commands) if command.startswith("settle")), 0)
    out = []
    for i, command in enumerate(made.commands[:end]):
        out.append(command)
        if i > 10 and rng.random() < 0.06:
            out += _slowness(rng)
    return replace(made, commands=out + made.commands[end:])


def _slowness(rng: random.Random) -> list[str]:
    name, other = rng.sample("PB", 2)
    stopped = f"tick {rng.choice((0.7, 1.2, 1.6, 2.0, 3.6))}"
    stops = [f"pause {name}", stopped, f"resume {name}", f"tick {rng.choice((0.05, 0.3, 1.0))}"]
    busy = f"busy {other} {rng.choice((2.5, 5.0, 8.0))} at {rng.choice(POINTS[:-1])}"
    return rng.choice((
        stops * rng.randint(1, 3),
        [f"crash {name}", f"tick {rng.choice((0.1, 1.8, 2.5))}", busy, "set c1 /a/1", f"start {name}", "tick 4.0"],
        [f"crash {name}", "set c1 /a/1", "tick 2.5", f"pause {other}", f"start {name}", "tick 4.5", f"resume {other}"],
    ))  # fmt: skip


def with_refused_groups(made: Plan) -> Plan:
    """Return the plan with programs that share a topic. After all is healed, the disks are full for a moment.

    Both servers then refuse the acknowledgements of members. Nothing happens later that would make a server deliver
    these messages again.
    """
    made, rng = with_consumers(made), random.Random(made.seed * 104_729 + 71)
    members = [command.split()[1] for command in made.commands if command.startswith("consume ")]
    out = list(made.commands)
    for _ in range(rng.randint(2, 4) if members else 0):
        out += [f"publish {rng.choice(members)} t {rng.choice((1, 5))}" for _ in range(rng.randint(1, 3))]
        out += [f"tick {rng.choice((0.1, 0.2)):.1f}", *_full_at_both(rng), f"settle {SETTLE_S}"]
    return replace(made, commands=out)


def with_uneven_members(made: Plan) -> Plan:
    """Return the plan with a group that has slow members, and with more messages than they can do soon."""
    made, rng = with_consumers(made), random.Random(made.seed * 104_729 + 101)
    names = sorted({command.split()[1] for command in made.commands if command.startswith("consume ")})
    out = [
        f"consume {command.split()[1]} t g" if command.startswith("consume ") else command for command in made.commands
    ]
    first = max((i for i, command in enumerate(out) if command.startswith("consume ")), default=0) + 1
    end = next((i for i, command in enumerate(out) if command.startswith("settle")), len(out))
    for _ in range(30 if names else 0):
        out.insert(rng.randint(first, max(first, end)), f"publish {rng.choice(names)} t 5")
        end += 1
    slow = names[: len(names) // 2]
    quick = [f"quick {name}" for name in slow]
    return replace(
        made, commands=[*out[:first], *(f"slow {name}" for name in slow), *out[first:end], *quick, *out[end:]]
    )


def with_deaths(made: Plan) -> Plan:
    """Return the plan with a group of topic t that counts deliveries, whose members die of some messages."""
    made = with_consumers(made)
    names = sorted({command.split()[1] for command in made.commands if command.startswith("client")})
    out = [
        f"consume {command.split()[1]} t p" if command.startswith("consume ") else command for command in made.commands
    ]
    settled = [f"settle {DEATHS_S}" if command.startswith("settle") else command for command in out]
    rng = random.Random(made.seed * 104_729 + 83)
    more = [f"publish {rng.choice(names)} t {rng.choice((2, 5))}" for _ in range(4)]
    at = next((i for i, command in enumerate(settled) if command.startswith("settle")), len(settled))
    return replace(made, commands=[*settled[:at], *more, *settled[at:]])


def _full_at_both(rng: random.Random) -> list[str]:
    state = rng.choice(("low", "little", "read-only"))
    filled = [f"disk {name} {state}" for name in "PB"]
    return [*filled, f"tick {rng.choice((0.6, 1.5)):.1f}", "disk P room", "disk B room"]


def with_mistakes(made: Plan) -> Plan:
    """Return the plan with some mistakes of an operator, each mended soon."""
    rng = random.Random(made.seed * 104_729 + 13)
    end = next((i for i, command in enumerate(made.commands) if command.startswith("settle")), 0)
    out = []
    for i, command in enumerate(made.commands[:end]):
        out.append(command)
        if i > 10 and rng.random() < 0.05:
            out += _mistake(rng)
    return replace(made, commands=out + made.commands[end:])


def _mistake(rng: random.Random) -> list[str]:
    name, other = rng.sample("PB", 2)
    # The time is less than `solo_wait_s`.
    soon = f"tick {rng.choice((0.1, 0.6, 1.4, 2.4)):.1f}"
    return rng.choice((
        [f"renew {name}", soon, f"start {name}"],
        [f"renew {name}", f"crash {other}", f"start {name}", "tick 4.5", f"start {other}", "tick 0.6"],
        [f"foreign {name} {rng.choice((1, 3, 9, 40))}", soon, f"home {name}", f"start {name}"],
        [f"misplace {name}", soon, f"crash {name}", f"start {name}"],
        [
            f"foreign {name} {rng.choice((1, 9))}", soon, f"bereave {name}", "tick 4.5",
            *rng.choice(([], [f"crash {name}", f"start {name}", "tick 4.5"])),
            f"home {name}", f"start {other}", f"start {name}",
        ],
    ))  # fmt: skip


class _Maker:
    def __init__(self, rng: random.Random, temper: str) -> None:
        self.rng, self.temper = rng, temper
        self.clients = [f"c{i + 1}" for i in range(rng.randint(1, 3))]
        self.faults = {
            "gentle": (self._crash,),
            "crash": (self._crash, self._crash_at, self._crash_client, self._crash_both, self._recover),
            "cut": (self._cut, self._cut_pair, self._count_alone, self._crash),
            "loss": (self._loss, self._drop),
            "pause": (self._pause, self._pause_at, self._stop_over_a_lease, self._busy),
            "clock": (self._wall, self._drift, self._crash),
            "reset": (self._reset, self._crash),
        }.get(temper) or (
            self._crash, self._crash_at, self._crash_client, self._crash_both, self._cut, self._cut_pair, self._drop,
            self._count_alone, self._pause, self._pause_at, self._stop_over_a_lease, self._busy, self._wall,
            self._drift, self._reset, self._switch,
        )  # fmt: skip

    def begin(self) -> list[str]:
        rng = self.rng
        commands = []
        for name in self.clients:
            kind = rng.choice(("model", "production", "production"))
            subtrees = (
                rng.choice((["all"], ["all"], ["/a/"]))
                if kind == "model"
                else rng.choice((["all"], ["all"], ["/a/", "/lin/"]))
            )
            commands.append(f"client {name} {kind} {' '.join(subtrees)}")
        starts = ["P", "B", *self.clients]
        rng.shuffle(starts)
        for name in starts:
            commands += [f"start {name}", f"tick {rng.choice((0, 0.01, 0.5)):.2f}"]
        if rng.random() < 0.8:
            commands.append("tick 2")
        return commands

    def next(self) -> list[str]:
        rng = self.rng
        out = [self._call() for _ in range(rng.choice((0, 1, 1, 2, 5)))]
        if rng.random() < 0.35:
            out += rng.choice(self.faults)()
        if rng.random() < 0.06:
            out.append(f"switch {rng.choice('PB')}")
        out.append(f"tick {rng.choice((0.002, 0.01, 0.03, 0.1, 0.3, 0.6, 1.2)):.3f}")
        if rng.random() < 0.04:
            out.append("tick 3.5")
        return out

    # -- what programs do

    def _call(self) -> str:  # noqa: PLR0911  # one line a case
        rng, client = self.rng, self.rng.choice(self.clients)
        kind = rng.random()
        if kind < 0.06:
            return f"tx {client} {' '.join(rng.sample(TX_KEYS, rng.choice((1, 2, 3))))}"
        if kind < 0.09:
            return f"retx {client}"
        if kind < 0.45:
            keys = " ".join(rng.sample(KEYS, rng.choice((1, 1, 1, 2, 3))))
            return f"set {client} {keys}"
        if kind < 0.62:
            return f"cset {client} {rng.choice(('/lin/x', '/lin/y', '/a/1'))}{rng.choice(('', '', '', ' =0'))}"
        if kind < 0.70:
            return f"del {client} {rng.choice(KEYS[:5])}"
        if kind < 0.73:
            return f"plain {client} {rng.choice(('/p/1', '/p/2', '/a/1'))}"
        if kind < 0.80:
            return f"set {client} {rng.choice(TTL_KEYS)} ttl={rng.choice((200, 700, 1500, 4000))}"
        if kind < 0.90:
            return f"read {client} {rng.choice('PB')} {rng.choice(('/lin/x', '/lin/y'))}"
        lease = f"L{client}"
        return rng.choice((
            f"lease {client} {lease} {rng.choice((900, 3000))}", f"set {client} {rng.choice(LEASE_KEYS)} lease={lease}",
            f"forsake {client} {lease}", f"unlease {client} {lease}",
        ))  # fmt: skip

    # -- what goes wrong

    def _wait(self) -> str:
        return f"tick {self.rng.choice((0.05, 0.3, 0.8, 1.3, 3.6, 4.5)):.2f}"

    def _crash(self) -> list[str]:
        name = self.rng.choice("PB")
        return [f"crash {name}", self._call(), self._wait(), self._call(), f"start {name}"]

    def _crash_at(self) -> list[str]:
        name = self.rng.choice("PB")
        return [f"crash {name} at {self.rng.choice(POINTS)}", self._call(), self._call(), self._wait(), f"start {name}"]

    def _recover(self) -> list[str]:
        """Return commands that kill a server, which then recovers for about `solo_wait_s` or longer."""
        name = self.rng.choice("PB")
        seconds = self.rng.choice((0.5, 2.5, 3.5, 6.0))
        return [f"crash {name}", self._wait(), f"recover {name} {seconds}", f"start {name}", self._call(), "tick 4.0",
                self._call(), "tick 2.5"]  # fmt: skip

    def _crash_both(self) -> list[str]:
        names = self.rng.sample("PB", 2)
        return [f"crash {names[0]}", self._call(), f"tick {self.rng.choice((0, 0.05, 1.5))}", f"crash {names[1]}",
                self._wait(),
                f"start {self.rng.choice(names)}", self._wait(), "start P", "start B"]  # fmt: skip

    def _crash_client(self) -> list[str]:
        name = self.rng.choice(self.clients)
        return [f"crash {name}", self._wait(), f"start {name}"]

    def _way(self) -> str:
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice(("P>B", "B>P"))
        client, server = rng.choice(self.clients), rng.choice("PB")
        kind = rng.choice(("", ".upd", ".set", ".req"))
        return rng.choice((f"{client}>{server}{kind}", f"{server}>{client}{kind}"))

    def _cut(self) -> list[str]:
        way = self._way()
        return [f"cut {way}", self._call(), self._wait(), self._call(), f"heal {way}"]

    def _cut_pair(self) -> list[str]:
        return ["cut P>B", "cut B>P", self._call(), self._wait(), self._call(), "tick 0.3", "heal P>B", "heal B>P"]

    def _count_alone(self) -> list[str]:
        """Return commands that cut the pair while a client of both servers does conditional sets of one key.

        Then a server stops or dies.
        """
        rng, client, key = self.rng, self.rng.choice(self.clients), self.rng.choice(("/lin/x", "/lin/y", "/a/1"))
        ways = rng.choice((("P>B", "B>P"), ("P>B", "B>P"), ("P>B",), ("B>P",)))
        counts = [line for _ in range(rng.randint(2, 6)) for line in (f"cset {client} {key}", "tick 0.06")]
        name, fault = rng.choice("PB"), rng.choice((("pause", "resume"), ("pause", "resume"), ("crash", "start")))
        return [
            *(f"cut {way}" for way in ways), f"tick {rng.choice((0.6, 1.5)):.1f}", *counts,
            f"{fault[0]} {name}", self._call(), self._wait(), self._call(),
            *(f"heal {way}" for way in ways), f"{fault[1]} {name}",
        ]  # fmt: skip

    def _stop_over_a_lease(self) -> list[str]:
        """Return commands that stop a server for about as long as a lease or a ttl lives."""
        rng, client, name = self.rng, self.rng.choice(self.clients), self.rng.choice("PB")
        lease = f"L{client}"
        return [
            f"lease {client} {lease} 900", f"set {client} {rng.choice(LEASE_KEYS)} lease={lease}",
            f"set {client} {rng.choice(TTL_KEYS)} ttl={rng.choice((700, 1500))}", f"tick {rng.choice((0.05, 0.5)):.2f}",
            f"pause {name}", self._call(), f"tick {rng.choice((0.8, 1.3, 3.6)):.1f}", self._call(), f"resume {name}",
        ]  # fmt: skip

    def _loss(self) -> list[str]:
        return [
            f"loss {self.rng.choice((0.02, 0.1, 0.3))}",
            self._call(),
            self._wait(),
            self._call(),
            self._wait(),
            "loss 0",
        ]

    def _drop(self) -> list[str]:
        return [f"drop {self._way()} {self.rng.choice((1, 1, 3))}", self._call()]

    def _pause(self) -> list[str]:
        name = self.rng.choice(("P", "B", "P", "B", *self.clients))
        return [f"pause {name}", self._call(), self._wait(), self._call(), f"resume {name}"]

    def _pause_at(self) -> list[str]:
        name = self.rng.choice("PB")
        point = self.rng.choice(("sync", "sync", *POINTS[:-1]))
        return [f"pause {name} at {point}", self._call(), self._wait(), self._call(), f"resume {name}"]

    def _busy(self) -> list[str]:
        """Return commands that make a turn take long, now and then so long that the server counts as stuck."""
        rng, name = self.rng, self.rng.choice("PB")
        seconds = rng.choice((0.4, 0.8, 1.3, 2.5, 2.5, 4.0, 13.0))
        out = [f"busy {name} {seconds} at {rng.choice(POINTS[:-1])}", self._call(), self._wait(), self._call()]
        return [*out, "tick 12.0", self._call()] if seconds > 10 else out

    def _wall(self) -> list[str]:
        return [f"wall {self.rng.choice(('P', 'B', *self.clients))} {self.rng.choice((-7200, -3, 3, 7200, 1e6)):.0f}"]

    def _drift(self) -> list[str]:
        return [f"drift {self.rng.choice(('P', 'B', *self.clients))} {self.rng.choice((0.93, 0.99, 1.02, 1.08))}"]

    def _switch(self) -> list[str]:
        return [f"switch {self.rng.choice('PB')}"]

    def _reset(self) -> list[str]:
        rng = self.rng
        client, server = rng.choice(self.clients), rng.choice("PB")
        return [
            f"reset {rng.choice((*(f'{client}-{server}.{k}' for k in ('upd', 'set', 'req')), 'P-B.peer', 'B-P.peer'))}"
        ]
