"""Early words and cuts in a live call's code around SmolLM2, its own tokens and template."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from engine.client import Engine
from engine.config import EngineConfig
from tests.support.engine_scene import EngineScene
from tests.support.fakes import Scene, say, silence
from tests.support.virtual_loop import VirtualLoop
from voice_agent.events import TurnTraced
from voice_agent.trace import Mark, TurnTrace

pytestmark = pytest.mark.model

FIRST = "what is the time please tell me more and weather today now"
SECOND = f"tell me more and more and what is the weather today please now and {FIRST} and {FIRST}"
HANDFUL = 14
"""Tokens: the words of the last second and a half, one that waited, one that was not sure, and the
five that SmolLM2 has between two speakers."""


class SceneClock:
    """Of whichever scene is played."""

    loop: VirtualLoop

    def now(self) -> float:
        return self.loop.now()


@pytest.fixture(scope="module")
def played(smollm2_path: Path) -> tuple[EngineScene, EngineScene]:
    """The same call twice, with early words and without: two turns, the second one cut."""
    clock = SceneClock()
    engine = Engine.load(EngineConfig(smollm2_path, kv_bytes=64 << 20), clock)

    def make(scene: Scene) -> Engine:
        clock.loop = scene.loop
        return engine

    scenes = []
    for deaf in (False, True):
        scene = EngineScene(
            make, chat=engine.chat, tokenizer=engine.tokenizer, deaf=deaf, min_tokens=40,
            instructions="You are a friendly phone agent. Tell long stories.",
            sampling={"temperature": 0.0}, limits={"max_reply_tokens": 60},
        )  # fmt: skip
        scene.play(
            silence(300), say(FIRST), silence(3000), say("stop please"), silence(3000),
            say(SECOND), silence(2500), say("stop please"), tail_ms=3000,
        )  # fmt: skip
        scenes.append(scene)
    engine.close()
    return scenes[0], scenes[1]


def traces(scene: EngineScene) -> list[TurnTrace]:
    return [e.trace for e in scene.of(TurnTraced)]


def late(trace: TurnTrace) -> int:
    """Prompt tokens that were computed when the reply was asked for, and not before."""
    return trace.prompt_tokens - trace.cached_tokens


def test_few_tokens_are_left_to_compute_when_the_caller_stops(played):
    early, deaf = map(traces, played)
    assert [t.transcript for t in early] == [FIRST, "stop please", SECOND, "stop please"]
    for with_words, without in zip(early, deaf, strict=True):
        assert with_words.reply_text == without.reply_text, "the same prompt, the same answer"
        assert with_words.heard == without.heard
        assert with_words.prompt_tokens == without.prompt_tokens
        assert late(with_words) <= HANDFUL
        assert late(with_words) < late(without)
    assert late(deaf[0]) > 2 * late(early[0])
    assert late(deaf[2]) > 3 * late(early[2]), "however long the caller spoke"
    assert early[2].early_tokens >= late(deaf[2]) - HANDFUL


def test_the_ids_of_a_turn_are_a_prefix_of_the_next_ones(played):
    for scene in played:
        assert len(scene.prompts) == 4
        for before, after in itertools.pairwise(scene.prompts):
            assert after[: len(before)] == before


def test_after_a_barge_in_only_new_tokens_are_computed(played):
    scene = played[0]
    assert scene.call is not None
    tokenizer = scene.engine.tokenizer
    for turn in (0, 2):
        cut = traces(scene)[turn]
        assert cut.interrupted
        assert cut.reply_text.startswith(cut.heard)
        assert 0 < len(cut.heard) < len(cut.reply_text)
        before, after = scene.prompts[turn : turn + 2]
        kept = len(tokenizer.encode(cut.heard))
        assert tokenizer.decode(after[len(before) : len(before) + kept]) == cut.heard
        new = len(after) - len(before) - kept
        decided = cut.marks[Mark.BARGE_IN_DECIDED]
        chosen = next(s.at_s for s in scene.steps if s.at_s > decided + 1e-4 and s.n_chosen)
        assert scene.computed(decided + 1e-4, chosen) == new


def test_nothing_of_a_call_outlives_it(played):
    for scene in played:
        kv = scene.engine._kv
        kv.pool.check()
        assert kv.pool.n_held == len(set(kv.pins.blocks()))
        assert kv.pool.n_held + kv.pool.n_free == kv.pool.n_total
        assert scene.call is not None
        assert f"call:{scene.call.id}" not in kv.pins
        assert not scene.engine._scheduler.requests
