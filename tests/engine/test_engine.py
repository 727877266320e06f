"""The whole engine on a real model, through its asyncio face."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import example
from engine.client import Engine, FinishReason
from engine.config import EngineConfig
from engine.sampling import SamplingParams

pytestmark = pytest.mark.model

SYSTEM = "You are a helpful voice assistant. Answer in one short sentence."
QUESTIONS = ["What is the capital of France?", "And of Italy?", "Which of them is larger?"]


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    threshold = gc.get_threshold()
    config = EngineConfig(smollm2_path, kv_bytes=64 << 20, threads=1, max_num_batched_tokens=64)
    made = Engine.load(config)
    made.warm()
    made.start()
    yield made
    made.close()
    made._loop.check()
    assert made.stats().integrity_failures_total == 0
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_warm_up_measured_something(engine):
    assert engine.warmup is not None
    assert 0.0 < engine.warmup.predict_decode_ms(1) < engine.warmup.predict_prefill_ms(200)


async def test_a_dialogue_recomputes_only_its_new_tokens(engine):
    chat = engine.chat
    context = chat.system(SYSTEM)
    await engine.prefill(context, tenant="dialogue", pin_key="agent")
    known = len(context)
    for question in QUESTIONS:
        context = context + chat.user(question) + chat.assistant_open()
        generation = engine.submit(context, SamplingParams(max_tokens=40), tenant="dialogue")
        done = await generation.collect()
        assert done.finish is FinishReason.STOP
        assert done.text == engine.tokenizer.decode(done.token_ids)
        assert generation.usage.cached_tokens == known
        context = context + list(done.token_ids)
        known = len(context)
        context = context + chat.assistant_close()
    engine.unpin("agent")


async def test_together_each_says_what_it_says_alone(engine):
    chat = engine.chat
    prompts = [
        chat.system(SYSTEM) + chat.user(question) + chat.assistant_open()
        for question in ("Name a colour.", "What is rain?", "Who wrote Hamlet?", "Say hello.")
    ]
    for params in (
        SamplingParams(max_tokens=16),
        SamplingParams(max_tokens=16, temperature=0.8, seed=5),
    ):
        alone = [await engine.submit(p, params, tenant="alone").collect() for p in prompts]
        together = await asyncio.gather(
            *(engine.submit(p, params, tenant=f"together {params.seed}").collect() for p in prompts)
        )
        assert [t.token_ids for t in together] == [a.token_ids for a in alone]


async def test_stop_string_ends_the_reply_before_it(engine):
    prompt = engine.chat.user("Count from one to ten.") + engine.chat.assistant_open()
    whole = await engine.submit(prompt, SamplingParams(max_tokens=30)).collect()
    stop = whole.text[8:12]
    done = await engine.submit(prompt, SamplingParams(max_tokens=30, stop=(stop,))).collect()
    assert done.finish is FinishReason.STOP
    assert done.text == whole.text[: whole.text.index(stop)]


async def test_min_tokens_keeps_a_reply_going(engine):
    prompt = engine.chat.user(QUESTIONS[0]) + engine.chat.assistant_open()
    short = await engine.submit(prompt, SamplingParams(max_tokens=40)).collect()
    assert short.finish is FinishReason.STOP
    floor = len(short.token_ids) + 5
    params = SamplingParams(max_tokens=60, min_tokens=floor)
    longer = await engine.submit(prompt, params).collect()
    assert len(longer.token_ids) >= floor
    assert longer.token_ids[: len(short.token_ids)] == short.token_ids


async def test_abort_frees_within_two_steps(engine):
    prompt = engine.chat.user("Tell me a long story.") + engine.chat.assistant_open()
    generation = engine.submit(prompt, SamplingParams(max_tokens=200))
    async for delta in generation:
        if delta.token_ids:
            break
    steps = engine.stats().steps_total
    generation.abort()
    for _ in range(5000):
        if not engine.stats().running:
            break
        await asyncio.sleep(0.001)
    assert not engine.stats().running
    assert engine.stats().steps_total - steps <= 2
    assert engine.stats().kv_blocks_held == engine.stats().kv_blocks_pinned


def test_the_example_runs(smollm2_path, capsys):
    threshold = gc.get_threshold()
    try:
        assert example.main([str(smollm2_path), QUESTIONS[0], QUESTIONS[1]]) == 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"> {QUESTIONS[0]}"
    assert "Paris" in lines[1]
    assert sum("prompt tokens were cached" in line for line in lines) == 2


def test_the_example_says_what_is_wrong(tmp_path, capsys):
    assert example.main([str(tmp_path / "none.gguf"), "Hello?"]) == 2
    assert "none.gguf" in capsys.readouterr().err
    assert example.main([]) == 2
