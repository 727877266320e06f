"""Every example does what it says, in virtual time; none is longer than a screen."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.support.fakes import Scene, say, silence, tool_call
from voice_agent.clauses import ClauseSplitter
from voice_agent.events import CallEnded, ToolFinished
from voice_agent.library.adapters import OwnThinker, OwnVoice
from voice_agent.plain_text import PlainChat, PlainTokenizer
from voice_agent.tts.estimate import timed
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.unit

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_fits_on_a_screen() -> None:
    files = list(EXAMPLES.iterdir())
    lines = {f.name: len(f.read_text("utf-8").splitlines()) for f in files if f.is_file()}
    assert len(lines) == 4
    assert {name: n for name, n in lines.items() if n > 40} == {}


def test_a_python_tool(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("python_tool")

    def reply(asked: str) -> str:
        if asked == "there is no such order":
            return "It is gone."
        if "Tuesday" in asked:
            return "It comes on Tuesday." + tool_call("cancel_order", '{"number": "7"}')
        return tool_call("order_status", '{"number": "1001"}')

    scene = Scene(reply)
    scene.stack._shelf.file = example.agent.file().model_copy(update={"name": "test"})  # type: ignore[attr-defined]
    scene.stack.scripts["test"] = example.agent.script
    scene.play(silence(3500), say("tell me more"), tail_ms=6000)
    assert [e.name for e in scene.of(ToolFinished)] == ["order_status", "cancel_order"]
    assert scene.history[0][1].startswith("Hello, this is the shop.")
    assert scene.history[-1] == ("assistant", "It is gone.")
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("ToolFinished") for line in printed) == 2


def test_a_custom_voice() -> None:
    voice = OwnVoice(load("custom_voice").Whistle())
    splitter = ClauseSplitter()
    (clause,) = [*splitter.push("Hello there, friend."), *splitter.finish()][:1]
    pieces = list(timed(clause, voice.synthesize(clause, speed=1.0, cancelled=bool), speed=1.0))
    assert len(pieces) > len(clause.words), "it streams"
    spoken = sum(len(p.pcm) for p in pieces) - clause.pause_ms * OUT_RATE // 1000
    assert spoken == pytest.approx(len(clause.words) * 0.22 * OUT_RATE, rel=0.02)
    assert max(np.abs(p.pcm).max(initial=0) for p in pieces) > 4000
    assert [w.index for p in pieces for w in p.words] == list(range(len(clause.words)))
    assert [p.last for p in pieces][-1] is True
    assert list(voice.synthesize(clause, speed=1.0, cancelled=lambda: True)) == []


def test_a_custom_llm() -> None:
    thinker = OwnThinker(load("custom_llm").Parrot())
    scene = Scene("", thinker=thinker, chat=PlainChat(), tokenizer=PlainTokenizer())
    scene.play(silence(300), say("tell me more"), tail_ms=5000)
    assert scene.history == [("user", "tell me more"), ("assistant", "You said: tell me more .")]


def test_a_call_can_be_driven_by_a_script() -> None:
    scene = Scene("Fine.", goodbye="Bye now.")
    seen: list[str] = []

    async def script(call) -> None:  # type: ignore[no-untyped-def]
        await call.say("One two three.")
        seen.append("said")
        call.hang_up()
        async for event in call:
            seen.append(type(event).__name__)

    scene.stack.scripts["test"] = script
    scene.play(silence(200), tail_ms=6000)
    assert seen[0] == "said"
    assert ("assistant", "One two three.") in scene.history
    assert scene.history[-1] == ("assistant", "Bye now.")
    assert isinstance(scene.events[-1][1], CallEnded)
