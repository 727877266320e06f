"""Workers and threads by what was measured: none starves another, on two cores too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.choose import Speeds, VoiceSpeed
from voice_agent.stage_plan import KEPT, MOST_SHARED, Crew, StagePlan, plan_stages

pytestmark = pytest.mark.unit


def speeds(stt_ms: float = 100.0, rtf: float = 0.08, device: str = "cpu") -> Speeds:
    return Speeds(device, 8, 20.0, 50.0, {"stt": stt_ms}, {"voice": VoiceSpeed(60.0, rtf)})


def plan(calls: int, cores: int, **options: float) -> StagePlan:
    return plan_stages(speeds(**options), "stt", "voice", calls, cores)  # type: ignore[arg-type]


def test_two_cores_give_each_stage_one_worker_of_one_thread() -> None:
    assert plan(8, 2) == StagePlan(Crew(1, 1), Crew(1, 1))


@pytest.mark.parametrize(("calls", "cores", "workers"), [(14, 2, 1), (16, 2, 2), (16, 1, 1)])
def test_a_voice_that_many_calls_keep_busy_gets_a_second_worker(
    calls: int, cores: int, workers: int
) -> None:
    """A reply of 6 s takes 0.48 s of a worker every 12 s: 15 calls are 60 % of one."""
    assert plan(calls, cores) == StagePlan(Crew(1, 1), Crew(workers, 1))
    assert plan(500, cores).voice.workers <= cores


def test_a_gpu_and_a_machine_that_was_not_measured_get_the_least() -> None:
    on_gpu = speeds(device="cuda")
    assert plan_stages(on_gpu, "stt", "voice", 50, 16) == StagePlan()
    assert plan_stages(None, "stt", "voice", 50, 16) == StagePlan()


def test_more_calls_get_more_workers_and_what_is_left_makes_passes_faster() -> None:
    assert plan(2, 16) == StagePlan(Crew(1, 2), Crew(1, 2))
    busy = plan(74, 16)
    assert busy.stt.workers > 1
    assert busy.voice.workers > 1


def test_the_slower_stage_gets_more() -> None:
    assert plan(40, 16, rtf=0.3).voice.workers > plan(40, 16, rtf=0.3).stt.workers


@given(st.integers(1, 500), st.integers(1, 256), st.floats(0.0, 5000.0), st.floats(0.0, 3.0))
def test_whatever_is_measured_the_engine_and_the_loop_keep_their_cores(
    calls: int, cores: int, stt_ms: float, rtf: float
) -> None:
    made = plan(calls, cores, stt_ms=stt_ms, rtf=rtf)
    crews = (made.stt, made.voice)
    assert all(crew.workers >= 1 and crew.threads >= 1 for crew in crews)
    threads = sum(crew.workers * crew.threads for crew in crews)
    assert threads <= max(1 + min(cores, MOST_SHARED), cores - KEPT)


def test_it_is_said_in_words() -> None:
    assert str(Crew()) == "1 worker of 1 thread"
    assert str(StagePlan(Crew(3, 2))) == (
        "recognition 3 workers of 2 threads, voice 1 worker of 1 thread"
    )
