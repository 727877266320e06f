"""Grammars through the whole engine: its thread, its cache, preemption, aborts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest
import regex

from engine.client import Engine, FinishReason
from engine.errors import UsageError
from engine.grammar.spec import Grammar
from engine.sampling import SamplingParams
from tests.support.logit_engine import LogitRunner, logit_engine, noise, tiny_tokenizer

pytestmark = pytest.mark.unit

TOKENIZER = tiny_tokenizer()


@contextlib.asynccontextmanager
async def running(**options):
    engine, runner = logit_engine(TOKENIZER, noise(TOKENIZER.vocab_size), **options)
    try:
        yield engine, runner
    finally:
        runner.gate.set()
        await asyncio.to_thread(engine.close)
        engine._loop.check()
        stats = engine.stats()
        assert (stats.kv_blocks_held, stats.integrity_failures_total) == (0, 0)
        assert engine._n_open == 0


def grammar_of(i: int) -> str:
    """A different language for every request, with a letter of its own."""
    letter = chr(ord("a") + i)
    return rf"({letter}[0-9]{{2}}-){{2,9}}{letter}(END|{letter}{{3,8}}!)"


async def test_rows_never_mix_masks_whatever_happens_around_them() -> None:
    """24 grammars at once on few blocks: preemptions, aborts, rows without a grammar between."""
    rng = random.Random(3)
    async with running(n_blocks=48, max_num_seqs=8, admission_growth=0.0) as (engine, runner):
        runner.pause_s = 0.0005
        runner.gate.clear()  # until all have come: on a busy machine they would run one by one

        async def one(i: int) -> bool:
            await asyncio.sleep(rng.random() * 0.02)
            pattern = grammar_of(i)
            params = SamplingParams(
                max_tokens=60, temperature=float(i % 3), grammar=Grammar("regex", pattern)
            )
            generation = engine.submit(TOKENIZER.encode(f"prompt {i % 4} " * 3), params)
            text, cut = "", rng.randint(2, 30) if i % 5 == 0 else 10**6
            async for delta in generation:
                text += delta.text
                if len(text) > cut:
                    generation.abort()
            assert generation.error is None
            if generation.finish is FinishReason.STOP:
                assert regex.fullmatch(pattern, text), text
            else:
                assert regex.fullmatch(pattern, text, partial=True), text
            return generation.finish is FinishReason.STOP

        async def free(i: int) -> None:
            done = await engine.submit(
                TOKENIZER.encode("free " * i), SamplingParams(max_tokens=20, ignore_eos=True)
            ).collect()
            assert len(done.token_ids) == 20

        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(one(i)) for i in range(24)]
            for i in range(1, 5):
                group.create_task(free(i))
            while engine._n_open < 28:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            runner.gate.set()
        stats = engine.stats()
        complete = sum(task.result() for task in ends)
        aborted = 24 - complete  # the engine may have ended one in the moment in which it was cut
        assert complete >= 15
        assert complete <= stats.grammar_valid_total <= complete + aborted
        assert complete <= stats.grammar_finished_total <= 24
        assert stats.preemptions_total > 0


async def test_json_is_valid_at_the_first_pass() -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["cat", "dog"]},
            "n": {"type": "integer", "minimum": 1, "maximum": 99},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
        "required": ["kind", "n", "tags"],
        "additionalProperties": False,
    }
    async with running() as (engine, _):
        params = SamplingParams(temperature=2.0, grammar=Grammar.json_schema(schema))
        prompts = [TOKENIZER.encode(f"p{i}") for i in range(12)]
        replies = await asyncio.gather(*(engine.submit(p, params).collect() for p in prompts))
        for reply in replies:
            value = json.loads(reply.text)
            assert reply.finish is FinishReason.STOP
            assert value["kind"] in ("cat", "dog")
            assert 1 <= value["n"] <= 99
        assert len({reply.text for reply in replies}) > 3
        stats = engine.stats()
        assert stats.grammar_valid_total == stats.grammar_finished_total == 12


async def test_a_grammar_changes_nothing_when_it_is_seeded_and_preempted() -> None:
    params = SamplingParams(
        temperature=1.0, seed=5, max_tokens=40, grammar=Grammar("regex", "[a-z]{30}")
    )
    texts = set()
    for blocks in (512, 28):
        async with running(n_blocks=blocks, admission_growth=0.0) as (engine, _):
            prompts = [TOKENIZER.encode(c * 9) for c in "pqrs"]
            done = await asyncio.gather(*(engine.submit(p, params).collect() for p in prompts))
            texts.add(tuple(reply.text for reply in done))
            assert (engine.stats().preemptions_total > 0) == (blocks == 28)
    assert len(texts) == 1


async def test_a_reply_that_is_cut_is_not_valid() -> None:
    async with running() as (engine, _):
        params = SamplingParams(max_tokens=3, grammar=Grammar("regex", "[a-z]{9}"))
        reply = await engine.submit([5, 6], params).collect()
        assert reply.finish is FinishReason.LENGTH
        stats = engine.stats()
        assert (stats.grammar_finished_total, stats.grammar_valid_total) == (1, 0)


async def test_a_bad_grammar_ends_its_request_only() -> None:
    async with running() as (engine, _):
        good = engine.submit([5], SamplingParams(grammar=Grammar("regex", "ok")))
        bad = engine.submit([5], SamplingParams(grammar=Grammar("regex", "(")))
        assert (await good.collect()).text == "ok"
        with pytest.raises(UsageError, match="unclosed"):
            await bad.collect()
        assert bad.finish is FinishReason.ERROR


async def test_min_tokens_can_not_outlast_a_grammar() -> None:
    async with running() as (engine, _):
        params = SamplingParams(max_tokens=9, min_tokens=8, grammar=Grammar("regex", "ab"))
        assert (await engine.submit([5], params).collect()).text == "ab"


async def test_an_abort_before_the_grammar_is_compiled_reaches_nothing() -> None:
    async with running() as (engine, _):
        desk = engine._desk
        assert desk is not None
        for i in range(50):
            params = SamplingParams(grammar=Grammar("regex", f"[a-z]{{{i + 1}}}"))
            generation = engine.submit([5], params)
            if i % 2:
                await asyncio.sleep(0.0005)
            generation.abort()
            assert (await generation.collect()).finish is FinishReason.ABORTED
        assert not desk._held


async def test_closing_ends_what_the_desk_still_holds() -> None:
    async with running() as (engine, _):
        params = SamplingParams(grammar=Grammar("regex", "[a-z]+"), max_tokens=1000)
        generations = [engine.submit([5], params) for _ in range(20)]
        await asyncio.to_thread(engine.close)
        for generation in generations:
            assert (await generation.collect()).finish is FinishReason.ABORTED
        with pytest.raises(UsageError, match="closed"):
            engine.submit([5], params)


async def test_an_engine_without_grammars_says_so() -> None:
    engine, _ = logit_engine(TOKENIZER, noise(TOKENIZER.vocab_size))
    bare = Engine(
        engine.config, LogitRunner(noise(9), 8, 40), tokenizer=TOKENIZER, chat=engine.chat,
        make_text=lambda request: None, eos_ids=frozenset(), n_vocab=9, clock=engine._clock,
    )  # fmt: skip
    with pytest.raises(UsageError, match="without grammars"):
        bare.submit([5], SamplingParams(grammar=Grammar("regex", "a")))
    await asyncio.to_thread(engine.close)
