"""One server as the client sees it: its protocol, its state, and what was heard from it and sent to it.

protocol   0: nothing was heard    1: a CHP/1 server (it sent a HUGZ and no greeting)    2: a greeting was seen
state      the state of Binary Star (chp.headers.State) that it told last; 0: none yet
ready      a KVSET will reach it, and its answer will reach this client; this needs two things: the subscription of its
           collector arrived here, and its greeting on the channel of our answers (or two HEARTBEATs) was seen
wire       how far the connection to its port P came; this tells a missing server from one that does not speak CHP
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chp.headers import Greeting, Heartbeat, ReplicaFacts, State, replica_facts

STATE_NAMES = {
    0: "unheard",
    State.PRIMARY: "starting as primary",
    State.BACKUP: "starting as backup",
    State.ACTIVE: "active",
    State.PASSIVE: "passive",
}
AWAY, CONNECTED, SPEAKS = "away", "connected", "speaks"
NOT_HEARD = {
    AWAY: "nothing takes connections there",
    CONNECTED: "it takes connections, but no ZeroMQ handshake follows; is this the first port of a CHP server?",
    SPEAKS: "it speaks ZeroMQ but sends no CHP; is this the first port of a CHP server?",
}


@dataclass(slots=True)
class ServerView:
    """The knowledge about one server."""

    index: int
    address: str
    protocol: int = 0
    state: int = 0
    epoch: int = 0
    # The number that the server told last.
    number: int = 0
    heard_at: float = float("-inf")
    heartbeat_s: float = 1.0
    server: bytes = b""
    # The id of the store that the server told last; b"" if the server has no store yet, or is of an older version.
    store: bytes = b""
    # The id of its store, if the store is of another pair (see `server_list`). Then the time of the first suspicion.
    foreign: bytes = b""
    suspected_at: float = 0.0
    name: str = ""
    greeted: set[bytes] = field(default_factory=set)
    # Topics that the server refused since this client last subscribed to them.
    turned_down: set[bytes] = field(default_factory=set)
    # HEARTBEATs that arrived before the greeting on the channel of our answers.
    beats: int = 0
    collector_up: bool = False
    # The time when the link to the collector last came up or went down.
    up_at: float = float("-inf")
    # The time of the first vote over this link to the collector; infinity before one.
    voted_at: float = float("inf")
    # Since this time the server has been heard as ACTIVE in an epoch below ours.
    lower_since: float = float("inf")
    # The time of the last message on P+1, or of the last new connection to it.
    update_at: float = float("-inf")
    # The highest batch number sent to this collector since its link came up.
    sent: int = 0
    # The number from which the server last asked us to send again, and the time of that.
    wanted: int = 0
    wanted_at: float = float("-inf")
    # The batch number that this client told the server as the oldest one it holds. Then how many refusals have counted
    # since (`Session.expected`), and the time of the last of these.
    skips_to: int = 0
    skips: int = 0
    skipped_at: float = float("-inf")
    # The text of the last refusal.
    refusal: str = ""
    # Topics to which the server refused a subscription, and why.
    refused: dict[bytes, str] = field(default_factory=dict)
    # The time of the last warning that this server sends unreadable messages.
    garbage_told_at: float = float("-inf")
    wire: str = AWAY
    # The reason why the server does not admit this client.
    denied: str = ""
    # Topics that the access rules forbid to this client, and why.
    forbidden: dict[bytes, str] = field(default_factory=dict)
    # The reason why its host name can't be resolved.
    unresolved: str = ""
    # The reason why this client does not use the server, such as a version that is not supported.
    unspoken: str = ""
    # What a replica told last about its place and its load; None for a server of the pair.
    replica: ReplicaFacts | None = None
    # The time of the active's last word that this server has passed on.
    word_at: float = float("-inf")
    # True if this client reads at this server: it is subscribed to its channels there, and sends its sets there.
    used: bool = True
    # True during a look: this client is subscribed to PULSE here, to hear the server's state and load.
    looked: bool = False
    # The server told its state since the last look began.
    answered: bool = False

    def ready(self, own_topic: bytes) -> bool:
        """Return True if a KVSET sent now will arrive, and its acknowledgement will be heard."""
        return self.collector_up and (self.protocol == 1 or own_topic in self.greeted)

    @property
    def gone(self) -> bool:
        """True if the connection to its collector was up, and went down."""
        return not self.collector_up and self.up_at > float("-inf")

    def voted(self, now: float) -> None:
        """Note a vote at this server."""
        if not self.up_at <= self.voted_at <= now:
            self.voted_at = now

    def introduce(self, header: Greeting) -> bool:
        """Take what a greeting says about the server. Return True if its process was restarted."""
        restarted = self.server not in {b"", header.server}
        self.unspoken = ""
        self.told_pace(header.heartbeat_ms)
        self.server, self.name, self.store = header.server, header.name[:200], header.store or b""
        if restarted:
            self.greeted.clear()
            self.turned_down.clear()
            self.beats = 0
        return restarted

    def told_load(self, header: Greeting | Heartbeat, now: float) -> None:
        """Note the load that a replica tells. A server of the pair tells none, and `word_at` is then now."""
        self.replica = None if header.replica is None else replica_facts(header.replica)
        self.word_at = now if self.replica is None else now - self.replica.age_ms / 1000

    def told_pace(self, heartbeat_ms: int) -> None:
        """Note the interval between its heartbeats."""
        self.heartbeat_s = max(0.001, heartbeat_ms / 1000)

    def has(self, topic: bytes) -> bool:
        """Note that the server has our subscription to this topic. Return True if that was not known."""
        news = topic not in self.greeted
        self.greeted.add(topic)
        self.refused.pop(topic, None)
        self.forbidden.pop(topic, None)
        return news

    def has_not(self, own_topic: bytes) -> None:
        """Note that the channel of our answers is subscribed to again.

        A greeting, or two heartbeats, will show that answers reach this client.
        """
        self.greeted.discard(own_topic)
        self.beats = 0

    @property
    def closed(self) -> str:
        """The reason why this server gives this client nothing, or "": no admission, or rules that forbid a topic."""
        return self.denied or next(iter(self.forbidden.values()), "")

    @property
    def refuses(self) -> str:
        """The last refusal of the server in words, or ""."""
        return next(iter(self.refused.values()), self.refusal)

    def describe(self, now: float) -> str:
        """Return a line such as `tcp://a:5556 active, epoch 3, heard 0.1 s ago`."""
        if self.denied:
            return f"{self.address} {self.denied}"
        if self.protocol == 0:
            return f"{self.address} not heard from: {self.unresolved or NOT_HEARD[self.wire]}"
        if self.unspoken:
            return f"{self.address} can't be used: {self.unspoken}"
        said = STATE_NAMES.get(self.state, str(self.state))
        old = " (CHP/1)" if self.protocol == 1 else f", epoch {self.epoch}"
        if self.replica is not None:
            old += f", a replica with {self.replica.readers} readers"
        link = "" if self.collector_up else ", its collector not connected"
        refusal = f", refused: {self.refuses}" if self.refuses else ""
        return f"{self.address} {said}{old}, heard {max(0.0, now - self.heard_at):.1f} s ago{link}{refusal}"
