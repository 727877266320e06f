"""The GPU's runner through the real loop: the CPU engine's tokens, launched ahead or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.gpu_runner import GpuRunner
from engine.inbox import Commit, Revise
from engine.runner import Runner
from engine.sampling import SamplingParams
from engine.speculate.draft import DraftProposer
from engine.speculate.ngram import NgramProposer
from engine.speculate.proposer import Proposer
from tests.engine.fakes import Sim
from tests.support import tiny_model
from tests.support.gpu_rows import ids

pytestmark = pytest.mark.unit

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
N_BLOCKS, N_SEQS, N_NEW = 40, 8, 20
PROMPTS = [ids(37, 1) + ids(12, 2), ids(37, 1) + ids(5, 3), ids(60, 4), ids(3, 5), ids(17, 6)]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_p": 0.95},
    {"temperature": 1.1, "top_k": 20, "logit_bias": ((5, 3.0),)},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.7, "logprobs": 2},
]
"""One for each prompt: a step has rows of every kind."""


class AtOnce(GpuRunner):
    """Its steps are read before the next is planned."""

    overlaps = False


class Counting(GpuRunner):
    """Counts the rows whose token was not known when they were launched."""

    n_pending = 0

    def launch(self, rows):
        self.n_pending += sum(-1 in row.token_ids for row in rows)
        return super().launch(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen2")
    tiny_model.save("qwen2", path)
    return path


@pytest.fixture(scope="module", params=DEVICES)
def runner(request: pytest.FixtureRequest, folder: Path) -> Counting:
    return load(Counting, folder, request.param)


def load(kind: type[GpuRunner], folder: Path, device: str) -> Any:
    return kind.load(
        folder, device=device, n_blocks=N_BLOCKS, quant="fp32", max_num_seqs=N_SEQS,
        max_num_batched_tokens=64,
    )  # fmt: skip


def sim(runner: Any, **options: Any) -> Sim:
    options.setdefault("max_num_seqs", N_SEQS)
    return Sim(N_BLOCKS, block_size=16, runner=runner, eos_ids=(), **options)


def ask(engine: Sim) -> list[Any]:
    return [engine.submit(p, N_NEW, sampling=s)[1]
            for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]  # fmt: skip


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[list[int]]:
    """Each prompt cold and alone on the CPU's engine."""
    judge = Runner.load(folder, n_blocks=N_BLOCKS, quant="fp32", threads=1)
    tokens = []
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True):
        engine = sim(judge)
        _, sink = engine.submit(prompt, N_NEW, sampling=sampling)
        engine.run()
        tokens.append(sink.tokens)
    return tokens


def test_together_chunked_cached_and_preempted(runner: Counting, wanted: list[list[int]]) -> None:
    for options in (
        {},
        {"max_num_batched_tokens": 8, "min_prefill_tokens": 5},
        {"max_num_seqs": 2},
        {"prefix_cache": "none"},
    ):
        engine = sim(runner, **options)
        for _ in range(2):  # the second time everything is cached
            sinks = ask(engine)
            engine.run()
            assert [sink.tokens for sink in sinks] == wanted, options
        assert engine.all_free()
    engine = sim(runner, admission_growth=0.0, pin_fraction=0.9)
    engine.submit(ids(400, 9), prefill_only=True, pin_key="fills the cache")
    engine.run()
    sinks = ask(engine)
    engine.run()
    assert engine.scheduler.counters.preemptions > 0
    assert [sink.tokens for sink in sinks] == wanted
    assert engine.all_free()


def test_plain_rows_are_launched_before_their_token_is_known(
    runner: Counting, wanted: list[list[int]]
) -> None:
    before = runner.n_pending
    engine = sim(runner)
    sinks = [engine.submit(p, N_NEW, sampling=s)[1]
             for p, s in zip(PROMPTS[:3], SAMPLINGS[:3], strict=True)]  # fmt: skip
    engine.run()
    assert [sink.tokens for sink in sinks] == wanted[:3]
    assert runner.n_pending - before > 3 * (N_NEW - 5)
    before = runner.n_pending
    engine = sim(runner)
    sinks = ask(engine)  # some of these need the token before on the host
    engine.run()
    assert runner.n_pending == before


def test_read_at_once_gives_the_same(
    folder: Path, runner: Counting, wanted: list[list[int]]
) -> None:
    engine = sim(load(AtOnce, folder, runner.model.device.type))
    sinks = ask(engine)
    engine.run()
    assert [sink.tokens for sink in sinks] == wanted


def test_static_batches(runner: Counting, wanted: list[list[int]]) -> None:
    engine = sim(runner, prefix_cache="none", max_num_seqs=4, static_len=96)
    sinks = ask(engine)
    engine.run()
    assert [sink.tokens for sink in sinks] == wanted


def test_a_prompt_revised_while_others_decode(runner: Counting, wanted: list[list[int]]) -> None:
    engine = sim(runner)
    _, other = engine.submit(PROMPTS[0], N_NEW, sampling=SAMPLINGS[0])
    request, sink = engine.submit(PROMPTS[1][:30], 1, held=True, call="c")
    for at, keep, more in ((1, 20, [3, 4, 5] * 9), (4, 7, PROMPTS[1][7:])):
        for _ in range(at):
            engine.step()
        engine.loop.post_edit(Revise(request.id, keep, tuple(more)))
    params = SamplingParams(max_tokens=N_NEW, **SAMPLINGS[1])
    engine.loop.post_edit(Commit(request.id, params, 1, N_NEW, 200.0))
    engine.run()
    assert sink.tokens == wanted[1]
    assert other.tokens == wanted[0]
    engine.kv.prefix.forget("c")
    assert engine.all_free()


def test_aborts_in_flight_leave_the_others_alone(runner: Counting, wanted: list[list[int]]) -> None:
    engine = sim(runner)
    leaving = [engine.submit(ids(20 + i, 70 + i), 50)[0] for i in range(3)]
    sinks = [engine.submit(p, N_NEW, sampling=s)[1]
             for p, s in zip(PROMPTS[:3], SAMPLINGS[:3], strict=True)]  # fmt: skip
    for request in leaving:
        for _ in range(3):
            engine.step()
        engine.loop.post_abort(request.id)
    engine.run()
    assert [sink.tokens for sink in sinks] == wanted[:3]
    assert engine.all_free()


@pytest.mark.parametrize("drafted", [False, True], ids=["ngram", "draft"])
def test_speculation(runner: Counting, wanted: list[list[int]], drafted: bool) -> None:
    """The draft is the model itself: every guess is right."""
    proposer: Proposer = NgramProposer()
    if drafted:
        proposer = DraftProposer(GpuRunner(runner.model, 24, max_num_seqs=4))
    engine = sim(runner, proposer=proposer)
    sinks = [engine.submit(p, N_NEW, sampling=s)[1]
             for p, s in zip(PROMPTS[:2], SAMPLINGS[:2], strict=True)]  # fmt: skip
    engine.run()
    assert [sink.tokens for sink in sinks] == wanted[:2]
    assert engine.speculation.proposed > 0
    assert not drafted or engine.speculation.accepted == engine.speculation.proposed
    assert engine.all_free()
