"""One server as the client sees it: what it speaks, what state it told, what was heard from it, what was sent to it.

protocol   0 nothing heard yet    1 a server of RFC 12 only (a HUGZ, no greeting)    2 a greeting was seen
state      of Binary Star (chp.headers.State), as last told; 0: none yet
ready      its collector's subscription has arrived here, and its greeting on our own channel (or two
           HEARTBEATs, if that was lost): so a KVSET will reach it, and its answer will reach us
wire       how far the connection to its P came: what is no CHP server is told from one that is not there
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chp.headers import Greeting, State

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
    """What is known of one server."""

    index: int
    address: str
    protocol: int = 0
    state: int = 0
    epoch: int = 0
    heard_at: float = float("-inf")
    heartbeat_s: float = 1.0
    server: bytes = b""
    name: str = ""
    greeted: set[bytes] = field(default_factory=set)
    turned_down: set[bytes] = field(default_factory=set)  # topics refused since we last subscribed to them
    beats: int = 0  # HEARTBEATs heard while our own channel had no greeting
    collector_up: bool = False
    up_at: float = float("-inf")  # since when, if it is
    update_at: float = float("-inf")  # when something came on its P+1, or that was connected anew
    sent: int = 0  # highest batch number handed to this collector since its link came up
    wanted: int = 0  # the number it last asked to be resent from, and when
    wanted_at: float = float("-inf")
    skips: int = 0  # how often it was told ...
    skips_to: int = 0  # ... that this batch is the oldest that we hold: what it lacks before, another one did
    refusal: str = ""  # the last thing it refused to do for us, in words
    refused: dict[bytes, str] = field(default_factory=dict)  # topics that it would not have us listen to, and why
    garbage_told_at: float = float("-inf")  # when somebody was warned that it sends what can't be read
    wire: str = AWAY
    denied: str = ""  # why it does not let us in
    forbidden: dict[bytes, str] = field(default_factory=dict)  # topics that the rules of access keep from us, and why
    unresolved: str = ""  # why the name of its host can't be resolved
    unspoken: str = ""  # why we have no dealings with it: its version is not ours

    def ready(self, own_topic: bytes) -> bool:
        """Whether a KVSET sent now will be taken and its acknowledgement heard."""
        return self.collector_up and (self.protocol == 1 or own_topic in self.greeted)

    def introduce(self, header: Greeting) -> bool:
        """What a greeting says of it; whether it is another process than the one that we knew."""
        restarted = self.server not in {b"", header.server}
        self.unspoken = ""
        self.told_pace(header.heartbeat_ms)
        self.server, self.name = header.server, header.name[:200]
        if restarted:
            self.greeted.clear()
            self.turned_down.clear()
            self.beats = 0
        return restarted

    def told_pace(self, heartbeat_ms: int) -> None:
        """How often it is heard at least."""
        self.heartbeat_s = max(0.001, heartbeat_ms / 1000)

    def has(self, topic: bytes) -> bool:
        """It has our subscription to this topic; whether that is news."""
        news = topic not in self.greeted
        self.greeted.add(topic)
        self.refused.pop(topic, None)
        self.forbidden.pop(topic, None)
        return news

    def has_not(self, own_topic: bytes) -> None:
        """Our own channel is subscribed to anew: its greeting, or two heartbeats, show that answers reach us."""
        self.greeted.discard(own_topic)
        self.beats = 0

    @property
    def closed(self) -> str:
        """Why nothing is to be had here: it does not let us in, or the rules keep something from us."""
        return self.denied or next(iter(self.forbidden.values()), "")

    @property
    def refuses(self) -> str:
        """What it does not do for us, and why."""
        return next(iter(self.refused.values()), self.refusal)

    def describe(self, now: float) -> str:
        """`tcp://a:5556 active, epoch 3, heard 0.1 s ago`."""
        if self.denied:
            return f"{self.address} {self.denied}"
        if self.protocol == 0:
            return f"{self.address} not heard from: {self.unresolved or NOT_HEARD[self.wire]}"
        if self.unspoken:
            return f"{self.address} can't be used: {self.unspoken}"
        said = STATE_NAMES.get(self.state, str(self.state))
        old = " (CHP/1)" if self.protocol == 1 else f", epoch {self.epoch}"
        link = "" if self.collector_up else ", its collector not connected"
        refusal = f", refused: {self.refuses}" if self.refuses else ""
        return f"{self.address} {said}{old}, heard {max(0.0, now - self.heard_at):.1f} s ago{link}{refusal}"
