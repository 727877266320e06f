"""The engine in this process as a reply sees it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import InternalError
from engine.generation import Delta
from engine.request import FinishReason
from engine.sampling import SamplingParams
from tests.support.engine_scene import scripted
from tests.support.fakes import say, silence
from voice_agent.context import Prompt
from voice_agent.events import CallFault, TurnTraced
from voice_agent.scope import CancelScope
from voice_agent.think import NEVER, Ahead, EngineThinker, EngineThinking, Source, Thought

pytestmark = pytest.mark.unit


class Generation:
    """Deltas as told, and whether it was closed."""

    def __init__(self, *deltas: Delta, error: Exception | None = None) -> None:
        self.error = error
        self.closed = False
        self.usage = SimpleNamespace(prompt_tokens=9, cached_tokens=4, output_tokens=2)
        self._deltas = iter(deltas)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        try:
            return next(self._deltas)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self.closed = True


async def test_deltas_become_thoughts() -> None:
    generation: Any = Generation(Delta("Hi", (1, 2)), Delta("", (), FinishReason.STOP))
    thinking = EngineThinking(generation)
    assert [t async for t in thinking] == [Thought("Hi", (1, 2), None), Thought("", (), "stop")]
    assert thinking.source == Source("embedded")
    assert thinking.usage.prompt_tokens == 9


async def test_a_failed_request_is_an_error_and_not_an_empty_reply() -> None:
    broken = InternalError("the step failed")
    generation: Any = Generation(Delta("", (), FinishReason.ERROR), error=broken)
    with pytest.raises(InternalError, match="the step failed"):
        _ = [t async for t in EngineThinking(generation)]


async def test_a_reader_that_leaves_ends_the_request() -> None:
    generation: Any = Generation(Delta("Hi", (1,)), Delta(" you", (2,)))
    thoughts = EngineThinking(generation).__aiter__()
    await anext(thoughts)
    await thoughts.aclose()
    assert generation.closed


def test_what_is_too_long_to_compute_ahead_is_told_by_the_reply_only() -> None:
    scene = scripted("Fine.")
    scene.engine._limits = replace(scene.engine._limits, max_model_len=60)
    scene.play(silence(300), say("what is the time please tell me more and weather today now"))
    assert {f.code for f in scene.of(CallFault)} == {"VA330"}
    assert "takes at most 59" in scene.of(CallFault)[0].message
    (trace,) = [e.trace for e in scene.of(TurnTraced)]
    assert trace.early_tokens < len(trace.transcript)
    assert not scene.engine._scheduler.requests


def test_a_reply_that_may_not_call_tools_cannot_write_the_tag() -> None:
    asked: list[SamplingParams] = []
    session = SimpleNamespace(
        follow=lambda ids: (len(ids), 0),
        commit=lambda sampling, deadline_s: asked.append(sampling) or SimpleNamespace(abort=len),
    )
    tokenizer = SimpleNamespace(encode=lambda text, allow_special: [7] if allow_special else [1, 2])
    engine: Any = SimpleNamespace(session=lambda **_: session, tokenizer=tokenizer)
    thinker, given = EngineThinker(engine), SamplingParams(logit_bias=((3, 1.0),))
    prompt = Prompt((), (1, 2), tools=({"type": "function"},))
    for each in (prompt, replace(prompt, may_call=False), Prompt((), (1, 2), may_call=False)):
        scope = CancelScope("reply")
        thinker.think(each, given, call="c", tenant="t", deadline_s=1.0, scope=scope)
    assert [one.logit_bias for one in asked] == [((3, 1.0),), ((3, 1.0), (7, NEVER)), ((3, 1.0),)]


async def test_a_call_is_forgotten_once_and_unknown_ones_are_fine() -> None:
    made: list[str] = []
    closed: list[str] = []

    def session(*, tenant: str, call: str) -> Any:
        made.append(f"{tenant}/{call}")
        return SimpleNamespace(follow=lambda ids: (len(ids), 0), close=lambda: closed.append(call))

    engine: Any = SimpleNamespace(session=session)
    thinker = EngineThinker(engine)
    for ids in ([1], [1, 2]):
        assert thinker.expect(ids, call="c", tenant="t") == Ahead(len(ids), 0)
    thinker.forget("other")
    thinker.forget("c")
    thinker.forget("c")
    assert (made, closed) == (["t/c"], ["c"])
