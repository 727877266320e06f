"""A tiny real model through the real loop: the same tokens whatever happened on the way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.inbox import Commit, Revise
from engine.runner import Runner
from engine.sampling import SamplingParams
from tests.engine.fakes import Sim
from tests.support import native, tiny_model

pytestmark = pytest.mark.unit

N_BLOCKS = 40
N_NEW = 24
SAMPLINGS = ({}, {"temperature": 0.9, "top_p": 0.95})


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    tiny_model.save(request.param, path)
    return path


@pytest.fixture(scope="module", params=["fp32", "int8", "native", "native int8"])
def runner(request: pytest.FixtureRequest, folder: Path) -> Runner:
    """The last one has a cache of 8 bits."""
    quant, _, kv = request.param.partition(" ")
    if quant == "native":
        native.library()
    return Runner.load(folder, n_blocks=N_BLOCKS, quant=quant, threads=1, kv_cache=kv or "full")


def prompt(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1, tiny_model.VOCAB), k=n)


PROMPTS = [prompt(37, 1) + prompt(12, 2), prompt(37, 1) + prompt(5, 3), prompt(60, 4), prompt(3, 5)]


def sim(runner: Runner, n_blocks: int = N_BLOCKS, **options) -> Sim:
    return Sim(n_blocks, block_size=runner.block_size, runner=runner, eos_ids=(), **options)


@pytest.fixture(scope="module")
def alone(runner: Runner) -> dict[int, list[list[int]]]:
    """Each prompt cold, alone and in one chunk, for each way of sampling."""
    result = {}
    for n, sampling in enumerate(SAMPLINGS):
        result[n] = []
        for p in PROMPTS:
            engine = sim(runner)
            _, sink = engine.submit(p, N_NEW, sampling=sampling)
            engine.run()
            assert len(sink.tokens) == N_NEW
            result[n].append(sink.tokens)
    return result


@pytest.mark.parametrize("n", range(len(SAMPLINGS)))
def test_cached_chunked_mixed_and_preempted_are_identical(runner, alone, n):
    sampling = SAMPLINGS[n]

    engine = sim(runner)
    for _ in range(2):  # the second time everything is cached
        for p, want in zip(PROMPTS, alone[n], strict=True):
            _, sink = engine.submit(p, N_NEW, sampling=sampling)
            engine.run()
            assert sink.tokens == want
        assert engine.scheduler.counters.cached_tokens > 0
    assert sink.cached == len(PROMPTS[-1]) - 1
    assert engine.all_free()

    for chunk in (1, 5, 16, 23):
        engine = sim(
            runner, max_num_batched_tokens=max(chunk, 4), max_num_seqs=4, min_prefill_tokens=chunk
        )
        sinks = [engine.submit(p, N_NEW, sampling=sampling)[1] for p in PROMPTS]
        engine.run()
        assert [sink.tokens for sink in sinks] == alone[n], f"chunks of {chunk}, together"

    engine = sim(runner, admission_growth=0.0, pin_fraction=0.9)
    engine.submit(prompt(440, 9), prefill_only=True, pin_key="fills the cache")
    engine.run()
    sinks = [engine.submit(p, N_NEW, sampling=sampling)[1] for p in PROMPTS]
    engine.run()
    assert engine.scheduler.counters.preemptions > 0
    assert [sink.tokens for sink in sinks] == alone[n], "preempted and resumed"
    assert engine.all_free()


@pytest.mark.parametrize("n", range(len(SAMPLINGS)))
def test_overlapping_steps_are_identical(runner, alone, n):
    """Greedy and seeded; cold and cached, in small chunks together, and preempted in flight."""
    sampling = SAMPLINGS[n]
    for chunk in (5, 64):
        engine = sim(
            runner, overlap=True, max_num_batched_tokens=chunk, max_num_seqs=4,
            min_prefill_tokens=chunk,
        )  # fmt: skip
        for _ in range(2):  # the second time everything is cached
            sinks = [engine.submit(p, N_NEW, sampling=sampling)[1] for p in PROMPTS]
            engine.run()
            assert [sink.tokens for sink in sinks] == alone[n]
        assert engine.scheduler.counters.cached_tokens > 0
        assert engine.late.n_pending > 2 * 4 * (N_NEW - 4)
        assert engine.all_free()

    engine = sim(runner, overlap=True)
    sinks = [engine.submit(p, N_NEW, sampling=sampling)[1] for p in PROMPTS]
    for at in (3, 4):
        for _ in range(at):
            engine.step()
        for request in list(engine.scheduler.running())[:2]:
            engine.scheduler._preempt(request)
        engine.kv.prefix.evict(3)
    engine.run()
    assert engine.scheduler.counters.preemptions == 4
    assert [sink.tokens for sink in sinks] == alone[n], "preempted in flight and resumed"
    assert engine.all_free()


def test_rows_that_overlap_and_rows_that_may_not_share_a_step(runner, alone):
    penalised = {"repetition_penalty": 1.3, "temperature": 0.7, "logprobs": 2}
    reference = sim(runner)
    _, want = reference.submit(PROMPTS[3], 6, sampling=penalised)
    reference.run()
    engine = sim(runner, overlap=True)
    sinks = [engine.submit(p, N_NEW)[1] for p in PROMPTS[:3]]
    for _ in range(4):
        engine.step()
    _, sink = engine.submit(PROMPTS[3], 6, sampling=penalised)
    engine.run()
    assert sink.tokens == want.tokens
    told, wanted = ([out.logprobs[0] for out in s.outputs] for s in (sink, want))
    assert told == pytest.approx(wanted, abs=1e-4)
    assert [sink.tokens for sink in sinks] == alone[0][:3]
    assert engine.late.n_pending > 3 * (N_NEW - 10)


def test_a_next_turn_equals_the_same_dialogue_cold(runner):
    engine = sim(runner)
    context: list[int] = prompt(30, 11)
    for turn in range(4):
        request, sink = engine.submit(context, 9)
        engine.run()
        cold = sim(runner, prefix_cache="none")
        _, reference = cold.submit(context, 9)
        # a fresh cache over the same storage: run last, so that nothing of `engine` is read after
        if turn == 3:
            cold.run()
            assert sink.tokens == reference.tokens
            assert sink.cached == len(context) - 7 - 1
        context = context + sink.tokens + prompt(7, 20 + turn)
    assert request.n_prompt == len(context) - 9 - 7


@pytest.mark.parametrize("kind", ["block-hash", "none"])
def test_other_prefix_caches_are_identical(runner, alone, kind):
    engine = sim(runner, prefix_cache=kind)
    for _ in range(2):
        for p, want in zip(PROMPTS, alone[0], strict=True):
            _, sink = engine.submit(p, N_NEW)
            engine.run()
            assert sink.tokens == want
    assert (sink.cached > 0, engine.scheduler.counters.cached_tokens > 0) == (
        False, kind == "block-hash",
    )  # fmt: skip
    assert engine.all_free()


def test_padding_is_identical(runner, alone):
    engine = sim(runner, prefix_cache="none", max_num_seqs=4, static_len=128)
    sinks = [engine.submit(p, N_NEW)[1] for p in PROMPTS]
    engine.run()
    assert [sink.tokens for sink in sinks] == alone[0]
    assert engine.all_free()


def test_larger_blocks_are_identical(runner, alone):
    larger = Runner(runner.model, N_BLOCKS // 2, 32)
    engine = sim(larger, n_blocks=N_BLOCKS // 2)
    sinks = [engine.submit(p, N_NEW)[1] for p in PROMPTS]
    engine.run()
    assert [sink.tokens for sink in sinks] == alone[0]
    _, again = engine.submit(PROMPTS[0], N_NEW)
    engine.run()
    assert (again.tokens, again.cached) == (alone[0][0], len(PROMPTS[0]) - 1)
    assert engine.all_free()


def test_a_prompt_that_grew_and_was_revised_is_identical(runner, alone):
    """Rolled back inside blocks that another call reads, while that call generates."""
    engine = sim(runner, max_num_batched_tokens=64)
    other, other_sink = engine.submit(PROMPTS[0], N_NEW)
    request, sink = engine.submit(PROMPTS[1][:30], 1, held=True, call="c")
    for at, keep, more in ((1, 20, [3, 4, 5] * 9), (4, 7, PROMPTS[1][7:40]), (7, 40, [])):
        for _ in range(at):
            engine.step()
        engine.loop.post_edit(Revise(request.id, keep, tuple(more)))
    engine.loop.post_edit(Revise(request.id, 40, tuple(PROMPTS[1][40:])))
    engine.loop.post_edit(Commit(request.id, SamplingParams(max_tokens=N_NEW), 1, N_NEW, 200.0))
    engine.run()
    assert sink.tokens == alone[0][1]
    assert other_sink.tokens == alone[0][0]
    assert other.state is request.state
    engine.kv.prefix.forget("c")
    assert engine.all_free()
