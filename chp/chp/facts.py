"""The facts that a server tells of itself: one table of names, types, units and meanings.

    FACTS       the values in the `status` of a server, by their paths in that map: `chp status --json`, the table of
                `chp status`, the gauges of Prometheus, the gateway's /v1/pair and OpenAPI take their names from here
    COUNTS      the kinds of `counts`, which are the kinds of `chp_events_total`
    MEASURES    the metrics that are no facts of the status

A path names the maps on the way to a value, and "[]" stands for the rows of a list: "room.full", "groups[].lag". Tests
compare the table with the status of a running pair, and docs/metrics.md with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

STRING, WHOLE, NUMBER, FLAG, MAP, LIST = "string", "integer", "number", "boolean", "object", "array"
_FITS: dict[str, tuple[type, ...]] = {
    STRING: (str,), WHOLE: (int,), NUMBER: (int, float), FLAG: (bool,), MAP: (Mapping,), LIST: (list, tuple),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of the status.

    `metric` and `gateway` say whether Prometheus and the gateway's /v1/pair show the fact; `row` is its row in `chp
    status`.
    """

    path: str
    type: str
    help: str
    unit: str = ""
    metric: bool = False
    gateway: bool = False
    row: str = ""

    @property
    def metric_name(self) -> str:
        """The name of the gauge in Prometheus."""
        return "chp_" + self.path.replace("s[].", "_").replace(".", "_")

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path.rpartition(".")[2]

    def of(self, status: Mapping[str, Any]) -> Any:
        """Return the value in a status, or None if it is missing or of another type."""
        found: Any = status
        for name in self.path.split("."):
            if not isinstance(found, Mapping):
                return None
            found = found.get(name)
        return found if self.fits(found) else None

    def fits(self, value: object) -> bool:
        """Return True if a value is of this fact's type; a boolean is no number."""
        return isinstance(value, _FITS[self.type]) and (isinstance(value, bool) is (self.type == FLAG))


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric that is no fact of the status."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()


# fmt: off
FACTS = (
    Fact("name", STRING, "the configured name of the server", gateway=True, row="role, name"),
    Fact("server", STRING, "the id of this run of the server"),
    Fact("store", STRING, "the id of the store: the server that opened its first epoch"),
    Fact("role", STRING, "primary, backup, replica, or alone without a peer", gateway=True, row="role, name"),
    Fact("insecure", FLAG, "other hosts reach this server without a key", row="open to"),
    Fact("access", MAP, "the number at which the rules of access changed last; null without rules"),
    Fact("state", STRING, "active, passive, or the role while it starts", gateway=True, row="state"),
    Fact("since_s", NUMBER, "seconds since its state last changed", "s", metric=True, gateway=True, row="in state, up"),
    Fact("uptime_s", NUMBER, "seconds since the server started", "s", metric=True, gateway=True, row="in state, up"),
    Fact("wall_ms", WHOLE, "the wall clock of the server", "ms"),
    Fact("epoch", WHOLE, "the epoch of the last update", metric=True, gateway=True, row="number"),
    Fact("sequence", WHOLE, "how many updates the store has seen", metric=True, gateway=True, row="number"),
    Fact("number", STRING, "epoch and sequence of the last update", row="number"),
    Fact("keys", WHOLE, "keys in the map", metric=True, gateway=True, row="keys"),
    Fact("fingerprint", STRING, "a sum over all keys and their revisions, the same on both servers"),
    Fact("sessions", WHOLE, "clients whose last batch is remembered", metric=True, gateway=True, row="sessions"),
    Fact("leases", WHOLE, "open leases", metric=True, gateway=True),
    Fact("transactions", WHOLE, "staged commits that wait for their commit", metric=True),
    Fact("applications", WHOLE, "applications whose last committed version is remembered; 10,000 may be", metric=True),
    Fact("staged_bytes", WHOLE, "bytes that wait for their commit", "bytes", metric=True),
    Fact("channels", MAP, "subscriptions to each of the first 100 subtrees", row="subscribers"),
    Fact("chp1_subscriptions", WHOLE, "CHP/1 subscriptions", metric=True, row="subscribers"),
    Fact("clients", WHOLE, "clients that told that they are connected", row="clients"),
    Fact("syncs", WHOLE, "snapshots and resumes under way", metric=True),
    Fact("images", WHOLE, "snapshots that are kept for several readers"),
    Fact("image_numbers", WHOLE, "numbers of which a planned read may still ask for a snapshot", metric=True),
    Fact("undo_bytes", WHOLE, "bytes of what changed since these numbers, with the old values", "bytes", metric=True),
    Fact("topics.topics", WHOLE, "topics", metric=True),
    Fact("topics.messages", WHOLE, "messages that topics keep", metric=True),
    Fact("topics.bytes", WHOLE, "bytes of the messages that topics keep", "bytes", metric=True),
    Fact("topics.scheduled", WHOLE, "messages that wait for their time", metric=True),
    Fact("topics.scheduled_bytes", WHOLE, "bytes of the messages that wait for their time", "bytes", metric=True),
    Fact("topics.groups", WHOLE, "groups of all topics", metric=True),
    Fact("topics.readers", WHOLE, "readers of a topic without a group", metric=True),
    Fact("topics.members", WHOLE, "members of groups that are connected", metric=True),
    Fact("topics.delivered", WHOLE, "messages given to readers and members since the start"),
    Fact("topics.missing", WHOLE, "messages that are known, and not in this journal", metric=True),
    Fact("groups[].topic", STRING, "the topic of one of 100 groups at most"),
    Fact("groups[].group", STRING, "the name of the group"),
    Fact("groups[].lag", WHOLE, "messages from the first on that the group has not acknowledged", metric=True),
    Fact("groups[].oldest_s", NUMBER, "seconds since the first of the group's lag came", "s", metric=True),
    Fact("groups[].members", WHOLE, "members of the group", metric=True),
    Fact("groups[].late", FLAG, "1 while the first of the group's lag is older than its lag_alarm_s", metric=True),
    Fact("pending", WHOLE, "sets a passive holds until it has seen them published", metric=True, row="pending"),
    Fact("pending_bytes", WHOLE, "bytes of the sets a passive holds", "bytes", metric=True, row="pending"),
    Fact("log_records", WHOLE, "records kept in memory for clients that come back", metric=True),
    Fact("log_bytes", WHOLE, "bytes of the records kept in memory", "bytes", metric=True),
    Fact("waiting_acks", WHOLE, "turns whose acknowledgements wait for the passive", metric=True),
    Fact("in_sync", FLAG, "1 while the passive has everything that is acknowledged", metric=True, gateway=True,
         row="in sync"),
    Fact("in_sync_since_s", NUMBER, "seconds since in_sync last changed", "s", row="in sync"),
    Fact("copies.wanted", WHOLE, "servers that have a set on disk before it counts as replicated (--copies)",
         metric=True, row="copies"),
    Fact("copies.in_sync", WHOLE, "servers that are in sync: the active, its passive, and replicas that confirm",
         metric=True, row="copies"),
    Fact("throttled", FLAG, "1 if sets waited for the passive within the last second", metric=True, gateway=True,
         row="in sync"),
    Fact("waiting_sets", WHOLE, "large sets that wait for their turn", metric=True),
    Fact("waiting_sets_bytes", WHOLE, "bytes of the large sets that wait for their turn", "bytes", metric=True),
    Fact("waits_for", STRING, "why the server does not begin, and the remedy", gateway=True),
    Fact("epochs[].epoch", WHOLE, "one of the last 50 epochs, the newest first"),
    Fact("epochs[].last", STRING, "the last number of the epoch"),
    Fact("epochs[].name", STRING, "the server that was active in it"),
    Fact("epochs[].because", STRING, "why that server became active"),
    Fact("epochs[].wall_ms", WHOLE, "when, by that server's clock", "ms"),
    Fact("epochs[].opener", STRING, "the id of that server's run"),
    Fact("room.full", FLAG, "1 while sets are refused for want of room", metric=True, gateway=True, row="room"),
    Fact("room.why", STRING, "what there is too little of, and the remedy", gateway=True, row="room"),
    Fact("room.read_only", FLAG, "1 while deletes are refused too", metric=True),
    Fact("room.memory", WHOLE, "resident memory", "bytes", metric=True, gateway=True),
    Fact("room.memory_max", WHOLE, "resident memory from which on sets are refused", "bytes", metric=True,
         gateway=True),
    Fact("room.disk_free", WHOLE, "free bytes where the journal is", "bytes", metric=True, gateway=True),
    Fact("room.disk_free_min", WHOLE, "free bytes below which sets are refused", "bytes", metric=True),
    Fact("room.keys_max", WHOLE, "keys that the map may have", metric=True),
    Fact("peer.name", STRING, "the name of the peer", row="peer"),
    Fact("peer.alive", FLAG, "1 while the peer is heard", metric=True, row="peer"),
    Fact("peer.state", STRING, "the peer's state, as it said last"),
    Fact("peer.number", STRING, "the peer's number, as it said last"),
    Fact("peer.room", FLAG, "the peer has room for sets"),
    Fact("peer.store", STRING, "the id of the peer's store"),
    Fact("peer.version", WHOLE, "the version of CHP/2 that the peer speaks"),
    Fact("peer.settings_differ", MAP, "settings that differ between the two servers"),
    Fact("peer.silent_s", NUMBER, "seconds since the peer was heard", "s", row="peer"),
    Fact("peer.turn_ms", WHOLE, "how long the peer's turn under way has taken, as it said last", "ms"),
    Fact("arbiter.set", LIST, "the servers that have all that was acknowledged, by the arbiter"),
    Fact("arbiter.number", STRING, "the number at which the arbiter was told that set"),
    Fact("scrub.on", FLAG, "1 if the contents of the two servers are compared", metric=True),
    Fact("scrub.passes", WHOLE, "times that the contents of the two servers were compared", metric=True),
    Fact("scrub.ended_s_ago", NUMBER, "seconds since a comparison was complete", "s", metric=True, row="compared"),
    Fact("scrub.keys", WHOLE, "keys that the last comparison went through", metric=True, row="compared"),
    Fact("scrub.differences", WHOLE, "keys that differed in the last comparison", metric=True, row="compared"),
    Fact("scrub.differing", LIST, "names of some keys that differed", row="compared"),
    Fact("misfit.kind", STRING, "why the server at --peer can't be the peer, in a word"),
    Fact("misfit.text", STRING, "why, and the remedy"),
    Fact("misfit.name", STRING, "the name of that server"),
    Fact("misfit.store", STRING, "the id of that server's store"),
    Fact("misfit.active", FLAG, "that server is active"),
    Fact("misfit.silent_s", NUMBER, "seconds since that server was heard", "s"),
    Fact("replica.hops", WHOLE, "replicas between its readers and the pair, this one included", metric=True,
         gateway=True, row="replica"),
    Fact("replica.age", WHOLE, "how old the active's last word is at this replica", "ms", metric=True, gateway=True,
         row="replica"),
    Fact("replica.readers", WHOLE, "connections that read at this replica", metric=True, gateway=True, row="replica"),
    Fact("replica.cpu", WHOLE, "the share of a core used in the last second, in thousandths", metric=True,
         gateway=True, row="replica"),
    Fact("replica.source", WHOLE, "the place of the server that it follows among --upstream, from 0"),
    Fact("replica.ends", STRING, "why this replica can't follow, and ends"),
    Fact("replicas[].name", STRING, "the name of a replica that follows this server", gateway=True, row="replicas"),
    Fact("replicas[].hops", WHOLE, "replicas between its readers and the pair", gateway=True),
    Fact("replicas[].readers", WHOLE, "connections that read at that replica", gateway=True, row="replicas"),
    Fact("replicas[].lag", WHOLE, "updates that the replica lacked when it reported", metric=True, gateway=True,
         row="replicas"),
    Fact("replicas[].in_sync", FLAG, "true while a replica that confirms is in sync; null for any other",
         row="replicas"),
    Fact("replicas[].silent_s", NUMBER, "seconds since the replica reported", "s", metric=True, gateway=True,
         row="replicas"),
    Fact("journal.store", STRING, "where the journal is", row="journal"),
    Fact("journal.store_id", STRING, "the id of this journal"),
    Fact("journal.sync", STRING, "the setting `sync`", row="journal"),
    Fact("journal.number", WHOLE, "the last number in the journal", metric=True),
    Fact("journal.snapshot_number", WHOLE, "the number of the journal's last snapshot", metric=True),
    Fact("journal.snapshot_bytes", WHOLE, "bytes of the journal's last snapshot", "bytes", metric=True),
    Fact("journal.rows", WHOLE, "rows of the journal", metric=True),
    Fact("journal.row_bytes", WHOLE, "bytes of the journal's rows", "bytes", metric=True, row="journal"),
    Fact("journal.since_snapshot_bytes", WHOLE, "bytes of the rows since the last snapshot", "bytes", metric=True),
    Fact("journal.retained_s", WHOLE, "the age of the journal's oldest row", "s", metric=True, row="journal"),
    Fact("journal.short_bytes", WHOLE, "bytes that the disk lacks, so that fewer rows are retained", "bytes",
         metric=True, row="journal"),
    Fact("journal.bytes", WHOLE, "bytes that the journal takes where it is", "bytes", metric=True, row="journal"),
    Fact("journal.syncs", WHOLE, "times that the journal was forced to disk", metric=True),
    Fact("journal.sync_last_s", NUMBER, "how long the last sync took", "s", metric=True),
    Fact("journal.sync_p50_s", NUMBER, "how long half of the latest syncs took at most", "s", metric=True,
         row="sync p50, p99"),
    Fact("journal.sync_p99_s", NUMBER, "how long 99 % of the latest syncs took at most", "s", metric=True,
         row="sync p50, p99"),
    Fact("journal.broken", STRING, "why nothing can be written any more"),
    Fact("turns.turns", WHOLE, "turns since the start", gateway=True),
    Fact("turns.seconds", NUMBER, "what all turns took", "s", gateway=True),
    Fact("turns.longest_ms", NUMBER, "what the longest turn took", "ms", gateway=True),
    Fact("turns.longest_did", STRING, "the parts of the longest turn"),
    Fact("turns.above_ms", MAP, "how many turns took longer than each bound"),
    Fact("counts", MAP, "what the server counted since it started, by kind", row="refused"),
)
COUNTS = {
    "updates": "sets, deletes and expiries that were done",
    "records": "records that the active made of them",
    "duplicates": "sets that had been done before",
    "older_skipped": "conditional updates that were left out, as their keys had later revisions",
    "batches_skipped": "batches that a client said another server had answered",
    "commits": "staged commits that became visible",
    "commits_repeated": "staged commits that had been done before",
    "refused_access": "sets refused as their user may not",
    "refused_bad": "sets refused as they break a rule of CHP/2",
    "refused_busy": "sets refused as there are too many at once",
    "refused_count": "sets of an application refused as their version was not the next one",
    "refused_expected": "batches refused as they were not the next ones of their session",
    "refused_fenced": "acknowledgements refused as their member does not have the messages any more",
    "refused_full": "sets refused for want of room",
    "refused_group": "sets refused as there is no such group",
    "refused_lease": "sets refused as their lease has ended",
    "refused_name": "messages not cancelled as none of that name was scheduled",
    "refused_parted": "sets refused as a part of them was in conflict",
    "refused_revision": "sets refused as their keys had other revisions",
    "refused_session": "batches refused as their session is not known",
    "refused_size": "sets refused as they were too large",
    "refused_staged": "staged commits refused as parts of them were missing",
    "refused_there": "topics and groups not made as they were there already",
    "refused_topic": "messages refused as their topic is missing or full",
    "garbage_updates": "messages to P+1 that are not CHP",
    "garbage_collector": "messages to P+2 that are not CHP",
    "garbage_snapshot": "messages to P that are not CHP",
    "garbage_peer": "messages to P+3 that are not CHP",
    "pending_without_uuid": "CHP/1 sets that a passive could not keep, as they have no UUID",
    "pending_dropped": "sets that a passive had no room to keep",
    "denied": "messages that the rules of access denied",
    "unknown_keys": "connections with a key that is not admitted",
    "removed_keys": "messages by a key that was removed",
    "handshakes_failed": "connections that were not encrypted as they have to be",
    "ended_for_others": "leases and transactions ended to make room for other users",
    "expired": "keys that expired",
    "expired_leases": "leases that expired",
    "forgotten_applications": "applications whose version was forgotten, as they had committed nothing for 30 days",
    "expired_transactions": "staged commits that expired",
    "scheduled_published": "scheduled messages that were published when they were due",
    "scheduled_denied": "scheduled messages that were dropped, as the rules denied them when they were due",
    "snapshots": "snapshots for clients",
    "resumes": "resumes of clients",
    "images": "snapshots for several readers",
    "feeds": "feeds that began",
    "channels_refused": "subscriptions refused, as there are too many channels",
    "requests_refused": "requests refused, as too many were under way",
    "readers_dropped": "requests given up, as their clients asked for no more",
    "readers_given_up": "clients whose answers were dropped, as they took too little",
    "subscribers_cut": "subscribers cut off, as they took less than was published",
    "connections_cut": "connections cut off, as their user had too many",
    "messages_without_an_end": "connections cut off in the middle of an endless message",
    "dead_letters": "messages of groups that failed too often, and were put aside",
    "groups_late": "times that the first message of a group became older than its lag_alarm_s",
    "members_too_slow": "members of groups that lost their slots, as they acknowledged nothing",
    "moves_asked": "readers that a replica asked to read at another replica, as it had too many",
    "slots_moved": "slots of groups that moved to another member",
    "slots_moved_by_work": "slots of groups that were to move from a slow member to a faster one",
    "upstream_dropped": "messages of a replica to the servers that it follows that were dropped for want of room",
    "peer_dropped": "messages to the peer that were dropped for want of room on the way",
    "degraded": "times that the active went on alone",
    "replicas_degraded": "times that the active went on without a replica that confirms",
    "diverged": "times that the passive did not hold what it confirmed",
    "parted": "times that the peer had updates that are no part of the history",
    "strangers": "messages to P+3 by another server than the peer",
    "scrub_differences": "keys that comparisons found to differ",
    "suffix_already": "updates of a second active that were there already",
    "suffix_replayed": "updates of a second active that were done again",
    "suffix_conflict": "updates of a second active that were in conflict",
    "suffix_messages_lost": "messages of a second active that its journal did not have any more",
    "suffix_taken_over": "updates that a second active handed over",
    "retained_damaged": "times that rows of the journal which only readers of changes need were found damaged",
    "defects": "turns or messages that ended in an exception",
}
# fmt: on
MEASURES = (
    Measure("chp_active", "gauge", "1 while this server is the active one of its pair"),
    Measure("chp_events_total", "counter", "what the server counted since it started", ("kind",)),
    Measure("chp_turn_seconds", "histogram", "processor time of a turn: one above 50 ms is too long"),
    Measure("chp_sync_seconds", "histogram", "how long a turn waits until its journal is durable"),
    Measure("chp_ack_seconds", "histogram", "from the turn that takes sets to their answers, with the confirmation"),
    Measure("chp_catch_up_seconds", "histogram", "from a client's request to the end of its copy or resume"),
    Measure("chp_published_messages_total", "counter", "messages published, each once however many it goes to"),
    Measure("chp_published_bytes_total", "counter", "bytes published, each once however many it goes to"),
    Measure("chp_subscribers", "gauge", "connections to the publishing socket"),
    Measure("chp_build_info", "gauge", "1, with what is running", ("version", "python")),
)
BY_PATH = {fact.path: fact for fact in FACTS}
GAUGES = tuple(fact for fact in FACTS if fact.metric and "[]" not in fact.path)
GROUP_GAUGES = tuple(fact for fact in FACTS if fact.metric and fact.path.startswith("groups[]."))
REPLICA_GAUGES = tuple(fact for fact in FACTS if fact.metric and fact.path.startswith("replicas[]."))
MEASURE = {measure.name: measure for measure in MEASURES}


def below(prefix: str) -> tuple[Fact, ...]:
    """Return the facts directly below a path, "" for the top."""
    return tuple(fact for fact in FACTS if fact.path.rpartition(".")[0] == prefix)


def names(prefix: str, *, gateway: bool = False) -> tuple[str, ...]:
    """Return the names of the facts directly below a path, with `gateway` only those that a gateway shows."""
    return tuple(fact.name for fact in below(prefix) if fact.gateway or not gateway)


def flat(status: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for each value of a status. The paths have the form of those in FACTS."""
    for name, value in status.items():
        yield from _flat(name, value)


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if path in BY_PATH:
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}", inner)
    elif isinstance(value, list):
        for row in value:
            yield from _flat(f"{path}[]", row)
    elif value is not None:
        yield path, value


def tables() -> str:
    """Return the tables of docs/metrics.md; a test compares that page with them."""
    status = ["| fact | type | metric | `chp status` | gateway | meaning |", "|---|---|---|---|---|---|"]
    for fact in FACTS:
        unit = f", {fact.unit}" if fact.unit else ""
        metric = f"`{fact.metric_name}`" if fact.metric else ""
        gateway = "yes" if fact.gateway else ""
        cells = f"`{fact.path}`", f"{fact.type}{unit}", metric, fact.row, gateway, fact.help
        status.append(f"| {' | '.join(cells)} |")
    counts = ["| kind | meaning |", "|---|---|", *(f"| `{kind}` | {text} |" for kind, text in COUNTS.items())]
    measures = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    measures += [f"| `{m.name}` | {m.type} | {', '.join(m.labels)} | {m.help} |" for m in MEASURES]
    return "\n".join([*measures, "", *counts, "", *status])
