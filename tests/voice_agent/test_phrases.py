"""The operator's words are voiced before they are needed, and only those are kept."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fakes import Scene, say, silence
from tests.support.virtual_loop import run_virtual
from voice_agent.agent import Call
from voice_agent.agent_file import AgentFile
from voice_agent.events import ReplyDone, TurnTraced
from voice_agent.trace import Mark

pytestmark = pytest.mark.unit

WORDS = {"greeting": "Hello there.", "goodbye": "Goodbye now.", "idle_prompts": ("Still there?",)}


def started(scene: Scene) -> list[str]:
    """What the voice was asked for before `ready`."""

    async def start() -> list[str]:
        await scene.stack.start()
        said = list(scene.speaker.said)
        await scene.stack.close()
        return said

    return run_virtual(start(), scene.loop)


def test_what_must_not_be_missing_is_voiced_before_ready_the_recovery_first() -> None:
    scene = Scene("Fine.", recovery="Pardon me?", phrases=("One moment please.",), **WORDS)
    assert started(scene) == ["Pardon me?", "Hello there.", "Goodbye now.", "Still there?"]


def test_phrases_are_voiced_right_after_and_then_cost_no_voice() -> None:
    phrase = "One moment please."
    scene = Scene(phrase, phrases=(phrase,), **WORDS)
    turn = (say("hello"), silence(4000))
    scene.play(silence(500), *turn, *turn)
    assert scene.speaker.said.count(phrase) == 1, "made once, said twice"
    assert [e.text for e in scene.of(ReplyDone)] == ["Hello there.", phrase, phrase]
    # the greeting, and the phrase in each turn
    assert scene.stack.gauges()["voice_cache_hits_total"] == 3.0


def test_a_models_words_are_never_kept() -> None:
    scene = Scene("You live in Elm Street.", **WORDS)
    scene.play(silence(300), say("hello"), silence(4000), say("hello"), silence(4000))
    cache = scene.stack.voice_cache
    assert cache is not None
    assert len(cache) == 5, "two clauses of the recovery, and three texts of one"
    assert sum("Elm" in said for said in scene.speaker.said) == 2


def test_another_speed_is_not_answered_from_the_cache() -> None:
    def faster(call: Call) -> None:
        call.client.update(speed=1.5)

    scene = Scene("One moment please.", phrases=("One moment please.",))
    scene.play(silence(500), faster, say("hello"), tail_ms=3000)
    assert scene.stack.gauges()["voice_cache_hits_total"] == 0.0
    assert scene.speaker.said.count("One moment please.") == 2


def test_switched_off_everything_is_voiced_when_it_is_said() -> None:
    scene = Scene("One moment please.", phrases=("One moment please.",), **WORDS)
    scene.stack.voice_cache = None
    scene.stack._speakers["fake"] = scene.speaker
    scene.play(silence(1500), say("hello"), tail_ms=3000)
    assert scene.speaker.said == ["Hello there.", "One moment please."]
    assert "voice_cache_hits_total" not in scene.stack.gauges()


def test_a_changed_agent_replaces_its_words() -> None:
    scene = Scene("Fine.", **WORDS)
    cache = scene.stack.voice_cache
    assert cache is not None

    async def edit() -> tuple[int, int]:
        await scene.stack.start()
        before = len(cache)
        scene.stack._shelf.file = AgentFile(  # type: ignore[attr-defined]
            name="test", instructions="Be brief.", recovery="Pardon?", idle_prompts=()
        )
        scene.stack.open_call(None, scene.on_event)
        await asyncio.sleep(5.0)
        await scene.stack.close()
        return before, len(cache)

    assert run_virtual(edit(), scene.loop) == (5, 1)


def test_a_cached_clause_is_heard_word_by_word_like_any_other() -> None:
    scene = Scene("One moment please.", phrases=("One moment please.",))
    scene.play(silence(500), say("hello"), silence(1000), say("stop please"), tail_ms=3000)
    cut = scene.of(ReplyDone)[0]
    assert "One moment please.".startswith(cut.heard)
    trace = scene.of(TurnTraced)[0].trace
    assert trace.marks[Mark.TTS_FIRST_AUDIO] <= trace.marks[Mark.FIRST_SOUND]
