"""A tiny real model: the same tokens with speculation and without, whatever else happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.runner import Runner
from engine.speculate.draft import DraftProposer
from engine.speculate.ngram import NgramProposer
from engine.speculate.proposer import Proposer
from tests.engine import test_equality as plain
from tests.engine.fakes import Sim
from tests.support import native, tiny_model

pytestmark = pytest.mark.unit

N_NEW = 32
PROMPTS = [*plain.PROMPTS[:2], plain.PROMPTS[1][:9] * 4, plain.PROMPTS[3]]
SAMPLINGS = ({}, {"temperature": 0.9, "top_p": 0.95}, {"temperature": 0.3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_model.save("llama", path)
    return path


@pytest.fixture(scope="module", params=["fp32", "native"])
def runner(request: pytest.FixtureRequest, folder: Path) -> Runner:
    if request.param == "native":
        native.library()
    return Runner.load(folder, n_blocks=plain.N_BLOCKS, quant=request.param, threads=1)


@pytest.fixture(scope="module", params=["ngram", "draft", "other-draft"])
def guesser(request: pytest.FixtureRequest, runner: Runner, tmp_path_factory) -> Runner | None:
    """The draft's runner: one like the target's, or one of other weights."""
    if request.param == "ngram":
        return None
    if request.param == "draft":
        return Runner(runner.model, 24, 16)
    path = tmp_path_factory.mktemp("qwen3")
    tiny_model.save("qwen3", path)
    return Runner.load(path, n_blocks=24, quant="fp32", threads=1)


@pytest.fixture(scope="module")
def alone(runner: Runner) -> list[list[list[int]]]:
    """Each prompt alone and without speculation, for each way of sampling."""
    result = []
    for sampling in SAMPLINGS:
        result.append([])
        for prompt in PROMPTS:
            engine = plain.sim(runner)
            _, sink = engine.submit(prompt, N_NEW, sampling=sampling)
            engine.run()
            result[-1].append(sink.tokens)
    return result


def sim(runner: Runner, guesser: Runner | None, **options) -> tuple[Sim, Proposer]:
    proposer = NgramProposer() if guesser is None else DraftProposer(guesser)
    return plain.sim(runner, proposer=proposer, speculation_tokens=5, **options), proposer


@pytest.mark.parametrize("n", range(len(SAMPLINGS)))
def test_tokens_are_identical(runner, guesser, alone, n):
    sampling = SAMPLINGS[n]
    engine, proposer = sim(runner, guesser)
    for _ in range(2):  # the second time everything is cached
        for prompt, want in zip(PROMPTS, alone[n], strict=True):
            _, sink = engine.submit(prompt, N_NEW, sampling=sampling)
            engine.run()
            assert sink.tokens == want
    assert engine.speculation.proposed > 0
    if guesser is not None and guesser.model is runner.model:
        assert engine.speculation.accepted == engine.speculation.proposed, "the same draws"
        assert engine.loop.counters.steps < engine.loop.counters.tokens / 3
    assert engine.all_free()

    for chunk in (1, 5, 23):
        engine, proposer = sim(
            runner, guesser, max_num_batched_tokens=max(chunk, 9), max_num_seqs=4,
            min_prefill_tokens=chunk,
        )  # fmt: skip
        sinks = [engine.submit(p, N_NEW, sampling=sampling)[1] for p in PROMPTS]
        engine.run()
        assert [sink.tokens for sink in sinks] == alone[n], f"chunks of {chunk}, together"
        assert engine.all_free()

    engine, proposer = sim(runner, guesser)
    sinks = [engine.submit(p, N_NEW, sampling=sampling)[1] for p in PROMPTS]
    for at in (3, 2):
        for _ in range(at):
            engine.step()
        for request in list(engine.scheduler.running())[:2]:
            engine.scheduler._preempt(request)
        engine.kv.prefix.evict(3)
    engine.run()
    assert engine.scheduler.counters.preemptions == 4
    assert [sink.tokens for sink in sinks] == alone[n], "preempted and resumed"
    assert engine.speculation._proposer is proposer, "it never broke"
    assert engine.all_free()


def test_rows_that_speculate_and_rows_that_may_not_share_a_step(runner, guesser, alone):
    engine, _ = sim(runner, guesser)
    penalised = {"repetition_penalty": 1.3}
    reference = plain.sim(runner)
    _, want = reference.submit(PROMPTS[0], N_NEW, sampling=penalised)
    reference.run()
    sinks = [engine.submit(PROMPTS[0], N_NEW, sampling=penalised)[1]]
    for sampling, prompt in zip(SAMPLINGS, PROMPTS, strict=False):
        sinks.append(engine.submit(prompt, N_NEW, sampling=sampling)[1])
    engine.run()
    assert sinks[0].tokens == want.tokens
    assert [sink.tokens for sink in sinks[1:]] == [alone[i][i] for i in range(3)]


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_a_repeating_text_is_guessed_from_itself(runner, sampling):
    sampling = sampling | {"logit_bias": ((5, 60.0), (9, 60.0))}  # a text of two words
    engine, _ = sim(runner, None)
    _, sink = engine.submit(PROMPTS[2], 120, sampling=sampling)
    engine.run()
    reference = plain.sim(runner)
    _, want = reference.submit(PROMPTS[2], 120, sampling=sampling)
    reference.run()
    assert sink.tokens == want.tokens
    assert engine.speculation.accepted > 0
    assert engine.loop.counters.steps < reference.loop.counters.steps
