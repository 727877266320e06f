"""What one caller more would mean, from what the stages do now."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes import Scene, say, silence
from voice_agent.outlook import FULL, PRIOR_S, WINDOW_S, Each, Outlook, Share, StageLoad, memory_for

pytestmark = pytest.mark.unit

SHARES = st.floats(0.0, 1.0)
STAGES = st.lists(st.builds(StageLoad, st.just("s"), SHARES, SHARES, SHARES, SHARES), max_size=4)


def test_an_idle_server_answers_in_the_time_of_the_work_itself() -> None:
    stages = (StageLoad("stt", 0.0, 0.1, 0.0), StageLoad("voice", 0.0, 0.2, 0.0))
    assert Outlook(0, stages, silence_s=0.3).answer_s(1) == pytest.approx(0.6)


def test_work_that_waits_now_counts_in_full() -> None:
    assert Outlook(2, (StageLoad("stt", 1.5, 0.1, 0.1),)).answer_s() == pytest.approx(1.6)


def test_a_half_busy_stage_is_full_with_twice_the_callers() -> None:
    outlook = Outlook(4, (StageLoad("voice", 0.0, 0.1, 0.5, 0.125),))
    assert outlook.full(1) is None
    assert outlook.full(4) is outlook.stages[0]
    assert math.isinf(outlook.answer_s(4))


def test_callers_who_have_only_just_come_count_before_they_load_anything() -> None:
    """Two made the share that was measured; the others have come since the last look."""
    stages = (StageLoad("voice", 0.0, 0.1, 0.2, 0.1),)
    assert Outlook(2, stages).full(1) is None
    assert Outlook(8, stages).full(1) is None
    assert Outlook(9, stages).full(1) is stages[0]
    assert Outlook(8, stages).answer_s(1) > Outlook(2, stages).answer_s(1)


def test_what_is_taken_now_counts_where_it_is_more_than_usual() -> None:
    stages = (StageLoad("voice", 0.0, 0.1, 0.9, 0.1),)
    assert Outlook(2, stages).full(1) is stages[0]


def test_the_stage_that_is_furthest_past_its_limit_is_named() -> None:
    voice = StageLoad("voice", 0.0, 0.1, 0.96, 0.01)
    shared = StageLoad("processors", 0.0, 0.0, 0.9, 0.01, most=0.8)
    assert Outlook(2, (voice, shared)).full(1) is shared


def test_what_a_caller_takes_is_expected_until_it_is_learnt() -> None:
    each = Each()
    assert each.share(0.05) == pytest.approx(0.05)
    assert each.share(None) == 0.0
    for _ in range(int(PRIOR_S)):
        each.note(0.1, 1.0)
    assert each.share(0.05) == pytest.approx(0.075, rel=0.06), "as much seen as was expected"
    for _ in range(20_000):
        each.note(0.1, 1.0)
    assert each.share(0.05) == pytest.approx(0.1, rel=0.06)
    for _ in range(20_000):
        each.note(0.02, 1.0)
    assert each.share(0.05) == pytest.approx(0.02, rel=0.2), "callers are others by now"


def test_memory_is_counted_for_who_holds_none_yet() -> None:
    left, each = memory_for(2, 2.0, held=80, total=400)
    assert (left, each) == (320, 40)
    left, each = memory_for(9, 2.0, held=80, total=400)
    assert (left, each) == (40, 40)
    assert memory_for(0, 0.0, held=60, total=400) == (340, 0)


def test_the_first_caller_finds_nobody() -> None:
    outlook = Outlook(0, (StageLoad("voice", 0.0, 0.1, 1.0),))
    assert outlook.full() is None


def test_memory_is_left_if_another_call_finds_its_blocks() -> None:
    assert Outlook(3).memory_left
    assert Outlook(3, memory=(40, 40)).memory_left
    assert not Outlook(3, memory=(39, 40)).memory_left


@given(STAGES, st.integers(1, 50), st.integers(0, 20), st.floats(0.0, 1.0))
def test_more_callers_are_never_answered_sooner(
    stages: list[StageLoad], calls: int, more: int, lag_s: float
) -> None:
    outlook = Outlook(calls, tuple(stages), lag_s=lag_s)
    assert outlook.answer_s(more) <= outlook.answer_s(more + 1)
    assert outlook.answer_s() >= lag_s
    if outlook.full(more) is not None:
        assert max(stage.share(calls, more) for stage in stages) > FULL


def test_a_share_is_of_the_last_half_minute() -> None:
    share, work_s, now_s = Share(), 0.0, 0.0
    seen = []
    for busy in (1.0, 0.0):
        for _ in range(int(2 * WINDOW_S)):
            now_s, work_s = now_s + 1.0, work_s + busy
            seen.append(share.note(now_s, work_s))
    assert seen[int(2 * WINDOW_S) - 1] == pytest.approx(1.0, abs=0.05)
    assert seen[int(2.5 * WINDOW_S)] == pytest.approx(0.5, abs=0.1)
    assert seen[-1] == 0.0
    assert all(0.0 <= value <= 1.0 for value in seen)


def test_a_stack_tells_of_its_stages_and_its_event_loop() -> None:
    scene = Scene("It is noon.")
    scene.play(silence(300), say("what is the time"))
    outlook, gauges = scene.stack.outlook(1), scene.stack.gauges()
    assert [stage.name for stage in outlook.stages] == ["vad", "stt"]
    assert outlook.memory is None
    assert gauges["loop_lag_p99_ms"] == 0.0, "in virtual time nothing is late"
    assert gauges["stage_stt_wait_ms"] == 0.0
