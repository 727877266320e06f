"""The language model's word on whether the caller is done: its worth, and what if it is late."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import CapacityError
from tests.support.fakes import FakeThinker, Scene, say, silence
from voice_agent.context import Prompt, Role
from voice_agent.end_of_utterance import (
    ENDINGS,
    Calibration,
    EndModel,
    ends_of,
    log_odds,
    unpunctuated,
)
from voice_agent.events import TurnCommitted, TurnReopened, TurnTraced
from voice_agent.shedding import Load, Shed
from voice_agent.think import EngineThinker, KnowsEnds
from voice_agent.trace import TurnTrace

pytestmark = pytest.mark.unit

WHOLE, BEGUN = 6.0, -6.0


class Reader(FakeThinker):
    """Tells `ends` of every pause, `after_s` later."""

    def __init__(self, ends: float | None, after_s: float = 0.03) -> None:
        super().__init__(lambda _: "Fine.")
        self.ends = ends
        self.after_s = after_s
        self.asked: list[tuple[Role, str]] = []
        self.cancelled = 0

    async def end_of_utterance(
        self, prompt: Prompt, *, call: str, tenant: str, deadline_s: float
    ) -> float | None:
        self.asked.append(prompt.messages[-1])
        try:
            await asyncio.sleep(self.after_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.ends


def waited(thinker: FakeThinker, *more: Any) -> tuple[Scene, list[TurnTrace]]:
    scene = Scene("", thinker=thinker)
    scene.play(silence(300), say("what is the time please"), silence(2500), *more)
    return scene, [e.trace for e in scene.of(TurnTraced)]


def timeout_ms(trace: TurnTrace) -> float:
    (why,) = [d.why for d in trace.decisions if d.what == "commit"]
    return float(why["timeout_ms"])


def test_words_that_read_as_a_beginning_are_waited_for() -> None:
    times = {}
    for ends in (WHOLE, None, BEGUN):
        _, (trace,) = waited(Reader(ends))
        times[ends] = timeout_ms(trace)
    assert times[WHOLE] == 280
    assert times[WHOLE] < times[None] < times[BEGUN] == 1400


def test_it_is_asked_once_a_pause_with_the_words_unpunctuated() -> None:
    thinker = Reader(BEGUN)
    scene = Scene("", thinker=thinker)
    scene.play(silence(300), say("what is the"), silence(600), say("time please"), silence(2500))
    assert thinker.asked == [(Role.USER, "what is the"), (Role.USER, "what is the time please")]
    (committed,) = scene.of(TurnCommitted)
    assert committed.text == "what is the time please"


def test_a_turn_that_is_clearly_over_does_not_wait_for_it() -> None:
    prompt, late = Reader(BEGUN, after_s=60.0), Reader(None, after_s=0.0)
    _, (without,) = waited(late)
    scene, (trace,) = waited(prompt)
    assert timeout_ms(trace) == timeout_ms(without)
    assert trace.marks == without.marks
    assert prompt.cancelled == len(prompt.asked) == 1, "the commit ends the question"
    assert len(scene.of(TurnCommitted)) == 1


def test_what_it_says_of_an_earlier_pause_is_nothing_now() -> None:
    """The answer for "what is the" comes when the whole sentence is being judged."""
    thinker = Reader(WHOLE, after_s=0.9)
    scene = Scene("", thinker=thinker)
    scene.play(silence(300), say("what is the"), silence(300), say("time please"), silence(2500))
    assert [e.text for e in scene.of(TurnCommitted)] == ["what is the time please"]
    assert not scene.of(TurnReopened)
    (trace,) = [e.trace for e in scene.of(TurnTraced)]
    (why,) = [d.why for d in trace.decisions if d.what == "commit"]
    assert "model" not in why


def test_under_load_it_is_not_asked() -> None:
    thinker = Reader(BEGUN)
    scene = Scene("", thinker=thinker)
    scene.stack.early.load = cast(Load, SimpleNamespace(shed=Shed.LLM, gauges=dict))
    scene.play(silence(300), say("what is the time please"), silence(2500))
    assert not thinker.asked
    assert len(scene.of(TurnCommitted)) == 1


def test_the_reason_is_in_the_trace() -> None:
    _, (trace,) = waited(Reader(1.234))
    (why,) = [d.why for d in trace.decisions if d.what == "commit"]
    assert why["model"] == 1.23


# ---------------------------------------------------------------- the number

PROBS = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20)


@given(PROBS, st.sets(st.integers(0, 19)))
def test_log_odds_are_those_of_the_endings_told(probs: list[float], ends: set[int]) -> None:
    total = 1.01 * sum(probs)
    rows = sorted(((i, math.log(p / total)) for i, p in enumerate(probs)), key=lambda r: -r[1])
    told = log_odds(rows, frozenset(ends))
    assert -9.3 < told < 9.3
    p = sum(math.exp(v) for i, v in rows if i in ends)
    if 1e-3 < p < 1 - 1e-3:
        assert math.isclose(1 / (1 + math.exp(-told)), p, rel_tol=1e-6)


def test_an_ending_that_is_not_told_is_less_likely_than_what_is() -> None:
    rows = [(1, math.log(0.5)), (2, math.log(0.2))]
    assert math.isclose(log_odds(rows, frozenset({9})), math.log(0.2 / 0.8))
    assert log_odds(rows, frozenset({9})) < log_odds(rows, frozenset({1}))


@pytest.mark.parametrize(
    ("text", "bare"),
    [("What is it?", "What is it"), (" I was... ", "I was"), ("At 5. Then,", "At 5. Then"),
     ("four one-", "four one"), ("", "")],
)  # fmt: skip
def test_only_what_closes_the_words_goes(text: str, bare: str) -> None:
    assert unpunctuated(text) == bare


def test_endings_are_marks_of_one_token_and_the_end_of_the_message() -> None:
    ids = {".": [1], "?": [2, 3], "!": [4]}
    chat: Any = SimpleNamespace(user=lambda t: [7, 8, 9, 10], user_open=lambda t: [7, 8])
    assert set(ENDINGS) == set(ids)
    assert ends_of(chat, SimpleNamespace(encode=ids.__getitem__)) == {1, 4, 9}  # type: ignore[arg-type]


# ---------------------------------------------------------------- the engine

PROMPT = Prompt(((Role.USER, "what"),), (1, 2, 3))


class Refusing:
    """An `EndModel` whose engine is full."""

    def __init__(self) -> None:
        self.n = 0

    async def log_odds(self, ids: object, **named: object) -> float:
        self.n += 1
        raise CapacityError("the queue is full")


async def test_a_full_engine_and_an_unknown_call_tell_nothing() -> None:
    session = SimpleNamespace(follow=lambda ids: (1, 0), close=lambda: None)
    engine: Any = SimpleNamespace(session=lambda **_: session)
    model: Any = Refusing()
    assert not isinstance(FakeThinker(lambda _: ""), KnowsEnds)
    thinker = EngineThinker(engine, model)
    assert isinstance(thinker, KnowsEnds)

    async def ask() -> float | None:
        return await thinker.end_of_utterance(PROMPT, call="c", tenant="t", deadline_s=0.0)

    assert await ask() is None
    assert model.n == 0, "nothing may be cached for a call that is over"
    thinker.expect([1], call="c", tenant="t")
    assert await ask() is None
    assert model.n == 1
    plain = EngineThinker(engine)
    plain.expect([1], call="c", tenant="t")
    assert await plain.end_of_utterance(PROMPT, call="c", tenant="t", deadline_s=0.0) is None


async def test_a_request_that_ends_without_a_token_tells_nothing() -> None:
    class Empty:
        def __aiter__(self) -> Empty:
            return self

        async def __anext__(self) -> Any:
            raise StopAsyncIteration

        async def aclose(self) -> None: ...

    chat = SimpleNamespace(user=lambda t: [7, 8], user_open=lambda t: [7])
    tokenizer = SimpleNamespace(encode=lambda t: [1])
    engine: Any = SimpleNamespace(submit=lambda *_, **__: Empty(), chat=chat, tokenizer=tokenizer)
    assert await EndModel(engine, Calibration(1.0, 0.0)).log_odds([1]) is None
