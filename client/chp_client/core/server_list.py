"""Check the list of servers of a client: it has to name servers of one pair, and replicas of that pair.

The greetings of the servers show two mistakes:

    three servers that are no replicas     a pair has two; the third one is not used
    two stores at once                     the server that was heard later is of another pair, and is not used

The stores of one pair may follow one another, as after a restart of servers with memory stores. A late message can
make two such stores look as if they were served at once. So a server is only *suspected* at first. The suspicion stays
if the server with the other store is still heard more than one allowed silence later. The suspicion is lifted if the
server with the other store falls silent before. It ends at any time if both servers tell the same store. The client
forgets the store of a server when the connection to that server ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from chp.headers import State

from .leadership import Leadership
from .server_view import ServerView

PAIR = 2
TOO_MANY = "{0} are {1} servers of pairs; name the two of one pair, and its replicas"
OF_ANOTHER_PAIR = "{0} holds the store {1}, and was served beside another store of this list: name one pair"
OTHER_STORE = (
    "{0} holds the store {1}, and {2} the store {3}, so they are of two pairs: name the servers of one pair, and its "
    "replicas"
)


class ServerList:
    """What the servers of a list say together, and what is wrong with the list."""

    def __init__(self, links: Sequence[ServerView], lead: Leadership) -> None:
        # The servers of the pair, in the order in which they greeted.
        self.pair: list[ServerView] = []
        # What is wrong with the list if it names three servers of pairs, or "".
        self._too_many = ""
        # The ACTIVE servers of another pair, by index, and why they are not used.
        self._other_pair: dict[int, str] = {}
        # For each server that is suspected and not yet certain, by index: the server with the other store.
        self._suspected: dict[int, ServerView] = {}
        self._links, self._lead = list(links), lead

    @property
    def misfit(self) -> str:
        """The reason why the list of servers can't be right, or ""."""
        return self._too_many or next(iter(self._other_pair.values()), "")

    def check(self, link: ServerView, state: int, now: float) -> str:
        """Check the list after a server has greeted. Return the reason not to use this server, if that is news."""
        before = self.misfit, link.foreign
        if link is self._lead.active:
            for each in self._links:
                if each.foreign and each.foreign == link.store:
                    # The followed server was known by a store that it no longer holds.
                    self._clear(each)
                    self._other_pair.pop(each.index, None)
                    each.unspoken = ""
        self._count(link)
        if self._too_many and link in self.pair[PAIR:]:
            link.unspoken = self._too_many
        self._other_pair.pop(link.index, None)
        if why := self._other_store(link, state, now):
            link.unspoken = why
            # A passive with the wrong disk does no harm to the clients of the active.
            if state == State.ACTIVE:
                self._other_pair[link.index] = why
        news = (self.misfit and not before[0]) or (link.foreign and not before[1])
        return (why or self.misfit) if news else ""

    def lift(self, link: ServerView, now: float) -> None:
        """Lift the suspicion against a server if the server with the other store fell silent soon after."""
        other = self._suspected.get(link.index)
        if other is None:
            return
        silence_s = self._lead.silence_s()
        if other.heard_at - link.suspected_at > silence_s:
            del self._suspected[link.index]
        elif now - other.heard_at > silence_s:
            del self._suspected[link.index]
            self._other_pair.pop(link.index, None)
            link.foreign, link.unspoken = b"", ""

    def _count(self, link: ServerView) -> None:
        """Note whether a server that greeted is of the pair, and whether there are three of them."""
        if link.replica is not None:
            self.pair = [each for each in self.pair if each is not link]
        elif link not in self.pair:
            # A replica that was promoted takes the place of a server that is gone.
            self.pair = [*(each for each in self.pair if len(self.pair) < PAIR or not each.gone), link]
        names = ", ".join(each.address for each in self.pair)
        self._too_many = TOO_MANY.format(names, len(self.pair)) if len(self.pair) > PAIR else ""

    def _other_store(self, link: ServerView, state: int, now: float) -> str:
        """Return why a server that greeted is of another pair than the followed one, or ""."""
        self.lift(link, now)
        other = self._beside(link, state, now)
        if other is None:
            # No other server tells its store at this moment, so only what was found earlier counts.
            if link.foreign != link.store:
                self._clear(link)
            return OF_ANOTHER_PAIR.format(link.address, link.store.hex()) if link.foreign else ""
        if link.store in (b"", other.store):
            self._clear(link)
            return ""
        if link.foreign != link.store:
            link.foreign, link.suspected_at = link.store, now
            self._suspected[link.index] = other
        return OTHER_STORE.format(link.address, link.store.hex(), other.address, other.store.hex())

    def _clear(self, link: ServerView) -> None:
        link.foreign = b""
        self._suspected.pop(link.index, None)

    def _beside(self, link: ServerView, state: int, now: float) -> ServerView | None:
        """Return the server whose store counts: the followed one, or while none is followed, another ACTIVE."""
        active, silence_s = self._lead.active, self._lead.silence_s()
        if active is not None or state != State.ACTIVE:
            found = [active] if active is not None else []
        else:
            found = [each for each in self._links if each.state == State.ACTIVE and each.store != link.store]
        heard = (each for each in found if each is not link and each.store and now - each.heard_at <= silence_s)
        return next(heard, None)
