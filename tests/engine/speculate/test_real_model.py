"""A real model with guesses, through the whole engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.client import Engine
from engine.config import EngineConfig
from engine.errors import UsageError
from engine.sampling import SamplingParams
from engine.stats import EngineStats

pytestmark = pytest.mark.model

SETTINGS = (
    SamplingParams(max_tokens=30),
    SamplingParams(max_tokens=30, temperature=0.8, top_p=0.95, seed=5),
)


def config(path: Path, **options) -> EngineConfig:
    return EngineConfig(path, kv_bytes=64 << 20, max_model_len=1024, **options)


async def replies(path: Path, **options) -> tuple[list[Sequence[int]], EngineStats]:
    engine = Engine.load(config(path, **options))
    engine.start()
    try:
        prompt = engine.tokenizer.encode("One two three. One two three. One two")
        told = [(await engine.submit(prompt, params).collect()).token_ids for params in SETTINGS]
        return told, engine.stats()
    finally:
        engine.close()


async def test_the_same_tokens_in_fewer_steps(smollm2_path: Path):
    want, plain = await replies(smollm2_path)
    options: list[dict] = [
        {"speculation": "ngram"}, {"speculation": "draft", "draft_model_path": smollm2_path}
    ]  # fmt: skip
    for chosen in options:
        told, stats = await replies(smollm2_path, **chosen)
        assert told == want
        assert stats.guesses_proposed_total >= stats.guesses_accepted_total > 0
        assert stats.steps_total < plain.steps_total
        assert stats.integrity_failures_total == 0
    assert stats.guesses_accepted_total == stats.guesses_proposed_total, "its own draft"
    assert plain.guesses_proposed_total == 0


def test_a_draft_of_another_vocabulary_is_refused(smollm2_path: Path, qwen_path: Path):
    with pytest.raises(UsageError, match="another vocabulary"):
        Engine.load(config(smollm2_path, speculation="draft", draft_model_path=qwen_path))
