"""What a call does early, and what it leaves, when it may not."""

from __future__ import annotations

import pytest

from tests.support.fakes import Scene, say, silence
from voice_agent.early import EarlyLimits, EarlyWork
from voice_agent.events import ReplyDone, TurnCommitted, TurnTraced
from voice_agent.gauges import predicted_wait_s
from voice_agent.shedding import Load
from voice_agent.trace import Mark, TurnTrace

pytestmark = pytest.mark.unit

ANSWER = "It is noon, and the sun is out."


def scene(wait_s: float = 0.0, **limits: object) -> Scene:
    made = Scene(ANSWER)
    load = Load(made.loop, made.stack.target_s, lambda: wait_s)
    made.stack.early = EarlyWork(EarlyLimits(**limits), load, made.loop)  # type: ignore[arg-type]
    return made


def one_turn(made: Scene) -> TurnTrace:
    made.play(silence(300), say("what is the time"))
    assert [e.text for e in made.of(ReplyDone)] == [ANSWER]
    (traced,) = made.of(TurnTraced)
    trace: TurnTrace = traced.trace
    return trace


def early(trace: TurnTrace, mark: Mark) -> bool:
    return trace.marks[mark] < trace.marks[Mark.COMMIT]


@pytest.mark.parametrize(
    ("wait_s", "limits", "thinks", "voices", "why"),
    [
        (0.0, {}, True, True, ""),
        (0.4, {}, True, False, "load"),
        (0.7, {}, False, False, "load"),
        (0.0, {"voice": False}, True, False, "off"),
        (0.0, {"llm": False}, False, False, "off"),
        (0.0, {"voice_s_per_minute": 0.0}, True, False, "budget"),
        (0.0, {"tokens_per_minute": 0.0}, False, False, "budget"),
    ],
)
def test_early_work_stops_in_the_declared_order(
    wait_s: float, limits: dict[str, object], thinks: bool, voices: bool, why: str
) -> None:
    trace = one_turn(scene(wait_s, **limits))
    assert early(trace, Mark.LLM_SUBMIT) is thinks
    assert early(trace, Mark.TTS_FIRST_AUDIO) is voices
    assert trace.early_refused == why


@pytest.mark.parametrize("limits", [{"voice": False}, {"llm": False}])
def test_the_turn_does_not_stay_open_for_what_is_not_coming(limits: dict[str, object]) -> None:
    """Without early work the end is where silence says it is."""
    eager = {"min_silence_ms": 200, "max_silence_ms": 200, "prepare_ms": 700}
    made = scene(**limits)
    made.file = made.stack._shelf.file = made.file.model_copy(  # type: ignore[attr-defined]
        update={"turn_taking": type(made.file.turn_taking)(**eager)}
    )
    trace = one_turn(made)
    assert trace.marks[Mark.COMMIT] - trace.marks[Mark.SPEECH_END] < 0.5


def test_a_caller_who_goes_on_uses_up_the_budget_and_the_traces_say_how() -> None:
    """Each pause is long enough to be answered early, and short enough to be a pause."""
    made = scene(voice_s_per_minute=1.0, tokens_per_minute=1e6)
    parts = [part for _ in range(6) for part in (say("tell me more"), silence(450))]
    made.play(silence(300), *parts, tail_ms=4000)
    traces = [e.trace for e in made.of(TurnTraced)]
    gauges = made.stack.gauges()
    assert gauges["early_refused_voice_budget_total"] >= 1
    assert gauges["early_wasted_voice_seconds_total"] >= 1.0
    wasted_ms = sum(trace.wasted_voice_ms for trace in traces)
    assert wasted_ms == pytest.approx(gauges["early_wasted_voice_seconds_total"] * 1000)
    assert (
        sum(t.wasted_tokens + t.taken_back_tokens for t in traces)
        == (gauges["early_wasted_tokens_total"])
    )
    assert made.of(TurnCommitted)


def test_without_early_thinking_no_word_is_prefilled_while_it_is_spoken() -> None:
    busy, calm = scene(wait_s=1.0), scene()
    for made in (busy, calm):
        made.play(silence(300), say("tell me more and what is the weather today"), tail_ms=3000)
    assert open_messages(calm), "the caller's message, still open"
    assert not open_messages(busy), "only what was committed"


def open_messages(made: Scene) -> list[str]:
    last = [ids.rpartition("<u>")[2] for ids in made.thinker.expected if "<u>" in ids]
    return [text for text in last if text and "|" not in text]


def test_the_predicted_wait_is_that_of_the_queues() -> None:
    made = scene()
    assert predicted_wait_s(made.stack) == 0.0
    made.recognizer.wait_s = 0.4  # type: ignore[attr-defined]
    assert predicted_wait_s(made.stack) == pytest.approx(0.4)
    made.loop.close()
