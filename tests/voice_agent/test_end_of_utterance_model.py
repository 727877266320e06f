"""SmolLM2 tells whole utterances from beginnings, and a call's prompt is not computed again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.client import Engine, Generation
from engine.config import EngineConfig
from loadtest.bench.utterances import DIALOGUE, measure
from voice_agent.context import Prompt
from voice_agent.end_of_utterance import CALIBRATION, EndModel
from voice_agent.endpointing import USUAL
from voice_agent.think import EngineThinker

pytestmark = pytest.mark.model


@pytest.fixture
async def engine(smollm2_path: Path) -> AsyncIterator[Engine]:
    engine = Engine.load(EngineConfig(smollm2_path, kv_bytes=64 << 20))
    engine.start()
    yield engine
    engine.close()


async def test_whole_utterances_and_beginnings(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (await measure(engine)).values():
        assert found.pairs > 0.9
        assert abs(found.calibration.slope - CALIBRATION.slope) < 0.3
        assert abs(found.calibration.offset - CALIBRATION.offset) < 0.8

    asked: list[Generation] = []
    submit = engine.submit

    def watched(*args: Any, **named: Any) -> Generation:
        asked.append(submit(*args, **named))
        return asked[-1]

    monkeypatch.setattr(engine, "submit", watched)
    thinker = EngineThinker(engine, EndModel(engine))
    chat, call = engine.chat, "call"
    told = {}
    for words in ("Can you tell me how to get to the station", "Can you tell me how to get"):
        ids = (*chat.dialogue(DIALOGUE), *chat.user_open(words))
        thinker.expect(ids, call=call, tenant="t")
        await engine.prefill(ids, tenant="t")
        prompt = Prompt((), ids)
        told[words] = await thinker.end_of_utterance(prompt, call=call, tenant="t", deadline_s=0.0)
    whole, begun = told.values()
    assert whole is not None
    assert begun is not None
    assert whole > USUAL > begun + 2
    assert [g.usage.output_tokens for g in asked] == [1, 1]
    for generation in asked:
        new = generation.usage.prompt_tokens - generation.usage.cached_tokens
        assert new <= 1, "all but the last token was known"
    thinker.forget(call)
