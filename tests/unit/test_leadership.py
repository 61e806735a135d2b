"""Tests of the server that a client follows: each cell of the table, and the equal tables of code and documents.

covers: leadership.py, freshness.py
"""

import re
from pathlib import Path

import pytest

from chp.headers import State as S
from chp.numbers import number
from chp_client.core import leadership as module
from chp_client.core.events import State
from chp_client.core.freshness import Freshness
from chp_client.core.leadership import TABLE, UNTOLD_S, FollowEvent, FollowState, Leadership, Move
from chp_client.core.server_view import ServerView
from chp_client.core.timing import Timing

ROOT = Path(__file__).parents[2]
SILENCE_S = 1.0


def place(standing: FollowState, *, late: bool) -> tuple[Leadership, ServerView, ServerView, float]:
    """Return the leadership of a client in epoch 5, the followed server, the other one, and the time."""
    links = [ServerView(0, "a", heartbeat_s=0.1), ServerView(1, "b")]
    lead, now = Leadership(links, Timing(silence_s=SILENCE_S), 0.0), 100.0
    assert lead.learned(links[0], S.ACTIVE, number(5, 1), now) is Move.FOLLOW
    lead.follow(links[0])
    if standing is FollowState.NOBODY:
        lead.leave(now)
    now += 0.0 if standing is FollowState.HEARD else 3 * SILENCE_S + 0.1 if late else SILENCE_S + 0.1
    assert lead.standing(now) is standing
    if late:
        links[1].voted(now - SILENCE_S - 0.05)
    return lead, links[0], links[1], now


@pytest.mark.parametrize("standing", FollowState)
@pytest.mark.parametrize("event", FollowEvent)
def test_each_cell_of_the_table(event: FollowEvent, standing: FollowState) -> None:
    lead, ours, other, now = place(standing, late=event is FollowEvent.LATE)
    if event in (FollowEvent.SAME, FollowEvent.AGAIN, FollowEvent.GONE):
        if standing is FollowState.NOBODY:
            # There is no followed server.
            return
        state = S.PASSIVE if event is FollowEvent.GONE else S.ACTIVE
        move = lead.learned(ours, state, number(5, 9), now, restarted=event is FollowEvent.AGAIN)
    else:
        epoch = {FollowEvent.HIGHER: 6, FollowEvent.EQUAL: 5}.get(event, 4)
        move = lead.learned(other, S.ACTIVE, number(epoch, 9), now)
    assert move is TABLE[event][standing.value]


def test_a_lower_epoch_server_has_time_to_rise_after_a_vote() -> None:
    """The vote tells it of our epoch. It could not be asked while the link to it was down."""
    lead, _, other, now = place(FollowState.SILENT, late=True)
    other.up_at = now
    assert lead.learned(other, S.ACTIVE, number(4, 9), now + 3) is Move.STAY
    other.voted(now + 3)
    assert lead.learned(other, S.ACTIVE, number(4, 9), now + 3.1) is Move.STAY
    other.voted(now + 3.9)
    assert lead.learned(other, S.ACTIVE, number(4, 9), now + 4.1) is Move.ANEW


def test_a_lower_epoch_server_is_not_followed_before_its_link_is_up() -> None:
    """Its first greeting may come before the link to P+2 is up (seed 10817)."""
    lead, _, _, now = place(FollowState.SILENT, late=True)
    other = ServerView(1, "b")
    assert lead.learned(other, S.ACTIVE, number(4, 9), now) is Move.STAY
    assert lead.learned(other, S.ACTIVE, number(4, 9), now + 2) is Move.STAY


def test_a_server_that_cannot_be_asked_is_followed_after_untold_s() -> None:
    """Its port P+2 is cut off, or comes and goes, and no other server is there."""
    lead, _, other, now = place(FollowState.SILENT, late=True)
    for tenths in range(round(UNTOLD_S * 10)):
        at = now + tenths / 10
        other.up_at = at
        other.voted(at)
        assert lead.learned(other, S.ACTIVE, number(4, 9), at) is Move.STAY
    other.up_at = now + UNTOLD_S + 0.1
    assert lead.learned(other, S.ACTIVE, number(4, 9), now + UNTOLD_S + 0.2) is Move.ANEW


def test_a_message_of_an_unfollowed_passive_changes_nothing() -> None:
    lead, _, other, now = place(FollowState.HEARD, late=False)
    assert lead.learned(other, S.PASSIVE, number(9, 1), now) is Move.STAY and lead.epoch == 5


def test_a_server_of_another_version_is_not_followed() -> None:
    lead, _, other, now = place(FollowState.NOBODY, late=False)
    other.unspoken = "its version is not ours"
    assert lead.learned(other, S.ACTIVE, number(9, 1), now) is Move.STAY


@pytest.mark.parametrize("text", [(ROOT / "spec" / "client.md").read_text(encoding="utf-8"), module.__doc__ or ""])
def test_the_documents_have_the_table_of_the_code(text: str) -> None:
    for event, moves in TABLE.items():
        row = next(line for line in text.splitlines() if re.match(rf"(\| |    ){event.name}\b", line))
        found = re.findall(r"(?<=[ |])(FOLLOW|ANEW|LEAVE|-)(?=[ |]|$)", row.replace(event.name, "", 1))
        wanted = [move.value for move in moves]
        assert found == wanted[-len(found) :], f"{event.name} is {found} where the code has {wanted}"


def test_a_copy_goes_from_connecting_to_synced_and_stale() -> None:
    fresh = Freshness(max_lag_s=0.5)
    assert fresh.told(False, 1.0) is None and fresh.state is State.CONNECTING
    assert fresh.told(True, 2.0) is State.SYNCED and fresh.told(True, 3.0) is None and fresh.current_at == 3.0
    assert fresh.told(False, 4.0) is State.STALE and fresh.current_at == 3.0
    assert fresh.told(True, 5.0) is State.SYNCED


def test_lag_is_measured_from_the_best_message() -> None:
    fresh = Freshness(max_lag_s=0.5)
    assert not fresh.measure(1_000, 51.2) and fresh.lag_s == 0.0
    assert not fresh.measure(2_000, 52.1) and fresh.measure(3_000, 53.7)
    assert fresh.lag_s == pytest.approx(0.6)
    fresh.measure_anew()
    assert not fresh.measure(4_000, 59.0)


def test_the_silence_limit_grows_with_the_heartbeat_while_the_connection_stands() -> None:
    lead, ours, _, now = place(FollowState.HEARD, late=False)
    ours.collector_up = True
    ours.told_pace(1000)
    assert lead.standing(now + 3.9) is FollowState.HEARD and lead.standing(now + 4.1) is FollowState.SILENT
    ours.collector_up = False
    assert lead.standing(now + 1.1) is FollowState.SILENT
