"""One order for every stage: by deadline and slack, a hole in a word before a later start."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.urgency import Due, cannot_wait, order, rebased

pytestmark = pytest.mark.unit

TIMES = st.floats(0.0, 100.0)
SERVICE = st.floats(0.0, 2.0)
PIECE_S = 0.1
HEARD = st.lists(st.builds(Due, TIMES, SERVICE, st.just(True)), max_size=8)


def test_what_takes_longer_must_begin_earlier() -> None:
    long, short = Due(1.0, 0.5), Due(0.9, 0.1)
    assert min(long, short, key=order) is long


def test_work_without_a_deadline_comes_last() -> None:
    assert min(Due(math.inf), Due(1e9), key=order).deadline_s == 1e9


def test_a_speaking_call_with_sound_ahead_yields_and_one_without_does_not() -> None:
    assert not cannot_wait([Due(5.0, 0.1, sounding=True)], 0.0, PIECE_S)
    assert cannot_wait([Due(0.15, 0.1, sounding=True)], 0.0, PIECE_S)
    assert not cannot_wait([Due(-3.0, 0.1)], 0.0, PIECE_S), "nobody hears it yet"


def test_calls_that_run_dry_together_are_served_one_after_the_other_in_time() -> None:
    """Each alone could wait, all together can't."""
    heard = [Due(0.5, 0.1, sounding=True)] * 4
    assert not cannot_wait(heard[:3], 0.0, PIECE_S)
    assert cannot_wait(heard, 0.0, PIECE_S)
    assert not cannot_wait(heard, 0.0, PIECE_S, workers=2)


@given(HEARD, TIMES, SERVICE)
def test_while_they_can_wait_one_more_piece_makes_nobody_late(
    heard: list[Due], now: float, piece_s: float
) -> None:
    if cannot_wait(heard, now, piece_s):
        return
    at_s = now + piece_s
    for due in sorted(heard, key=lambda due: due.deadline_s):
        at_s += due.service_s
        assert at_s <= due.deadline_s


@given(HEARD, TIMES, SERVICE, SERVICE)
def test_who_cannot_wait_for_a_piece_cannot_wait_for_a_longer_one_nor_later(
    heard: list[Due], now: float, piece_s: float, more_s: float
) -> None:
    if cannot_wait(heard, now, piece_s):
        assert cannot_wait(heard, now, piece_s + more_s)
        assert cannot_wait(heard, now + more_s, piece_s)


@given(st.builds(Due, TIMES, SERVICE, st.booleans()), TIMES)
def test_what_is_late_is_put_off_to_a_time_that_can_be_kept(due: Due, now: float) -> None:
    later = rebased(due, now, 0.6)
    if due.sounding or now <= due.begin_by_s:
        assert later is None
    else:
        assert later is not None
        assert rebased(Due(later, due.service_s), now, 0.6) is None, "once is enough"
        assert later > due.deadline_s
