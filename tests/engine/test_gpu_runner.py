"""The GPU's runner, on the CPU with the kernels' references; on a GPU where there is one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.device import HostDevice, cache_bytes
from engine.errors import CapacityError, InternalError, UsageError
from engine.gpu_runner import GpuRunner
from engine.inputs import PENDING, Row, SampleRow
from engine.models.gpu import GpuLlama
from engine.runner import Runner
from engine.sampling import SamplingParams
from tests.support import tiny_model
from tests.support.gpu_rows import (
    GREEDY,
    WARM,
    decode_row,
    generate,
    ids,
    prompt_row,
    sample,
    table,
)

pytestmark = pytest.mark.unit

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PROMPTS = [ids(37, 1), ids(5, 2), ids(60, 3), ids(1, 4), ids(16, 5)]
N_SEQS = 6


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    tiny_model.save(request.param, path)
    return path


def load(folder: Path, device: str, **options) -> GpuRunner:
    torch.set_num_threads(1)
    small = {"n_blocks": 64, "quant": "fp32", "max_num_seqs": N_SEQS, "max_num_batched_tokens": 48}
    options = {**small, **options}
    return GpuRunner.load(folder, device=device, **options)


@pytest.fixture(scope="module")
def runner(folder: Path, device: str) -> GpuRunner:
    return load(folder, device)


@pytest.fixture(scope="module")
def judge(folder: Path) -> Runner:
    return Runner.load(folder, n_blocks=64, quant="fp32", threads=1)


def close(a: torch.Tensor, b: torch.Tensor, device: str) -> bool:
    """A GPU adds up in another order."""
    tolerance = 2e-4 if device == "cpu" else 2e-3
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", tiny_model.KINDS)
def test_logits_match_transformers(kind: str, device: str, tmp_path: Path) -> None:
    model = tiny_model.save(kind, tmp_path)
    runner = load(tmp_path, device)
    prompt = ids(130)
    with torch.inference_mode():
        want = model(torch.tensor([prompt])).logits[0]
    for n in (1, 2, 16, 17, 130):
        got = runner.logits([Row(prompt[:n], 0, table(n, 0), None)])[0]
        assert close(got, want[n - 1], device), n
    blocks = table(130, 20)
    runner.run([Row(prompt[:100], 0, blocks, None)])
    for at in range(100, 116):  # token by token, through the decode graphs
        got = runner.logits([Row(prompt[at : at + 1], at, blocks, None)])[0]
        assert close(got, want[at], device), at
    got = runner.logits([Row(prompt[116:], 116, blocks, None)])[0]
    assert close(got, want[-1], device)


def test_a_mixed_step_computes_what_the_cpu_engine_does(
    runner: GpuRunner, judge: Runner, device: str
) -> None:
    blocks = [table(80, 5 * i) for i in range(5)]
    known = [Row(prompt, 0, blocks[i], None) for i, prompt in enumerate(PROMPTS)]
    step = [
        Row(ids(1, 9), 37, blocks[0], None),
        Row(ids(20, 8), 5, blocks[1], None),
        Row(ids(1, 7), 60, blocks[2], None),
        Row(ids(2, 6), 1, blocks[3], None),
        Row(ids(64, 5), 16, blocks[4], None),
    ]
    for one in (runner, judge):
        one.run(known[:2])
        one.run(known[2:])
    assert close(runner.logits(step), judge.logits(step), device)
    for n in (1, 3, 5):
        alone = torch.cat([runner.logits([row]) for row in step[:n]])
        assert close(runner.logits(step[:n]), alone, device), n


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_tokens_do_not_depend_on_graphs_or_on_launching_ahead(
    folder: Path, device: str, params: SamplingParams
) -> None:
    outs = []
    for graphs, ahead in itertools.product((False, True), repeat=2):
        runner = load(folder, device, graphs=graphs)
        outs.append(generate(runner, PROMPTS, 20, ahead=ahead, params=params))
    assert outs.count(outs[0]) == 4
    alone = [generate(runner, [p], 20, ahead=True, params=params)[0] for p in PROMPTS[:1]]
    assert alone == outs[0][:1]


def test_warm_tokens_are_the_cpu_engines(runner: GpuRunner, judge: Runner, device: str) -> None:
    """The same random numbers, penalties, biases and filters as engine.choice."""
    settings = [
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.5, min_p=0.05),
        SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.5),
        SamplingParams(frequency_penalty=1.5, logit_bias=((3, 2.0), (3, 1.0), (7, -9.0))),
        SamplingParams(logit_bias=tuple((t, -100.0) for t in range(50))),
    ]
    for n_prompt in (1, 33):  # a decode step and a prompt
        rows = []
        for i, params in enumerate(settings):
            prompt = ids(n_prompt, i)
            history = [*prompt, *prompt[:3]] if n_prompt > 1 else prompt
            asked = SampleRow(params, n_prompt, 2**63 + i, history, n_prompt)
            rows.append(Row(prompt, 0, table(n_prompt, 4 * i), asked, slot=i))
        got, want = runner.run(rows), judge.run(rows)
        if device == "cpu":
            assert got == want
        else:  # a draw may fall between two tokens' shares
            assert sum(a == b for a, b in zip(got, want, strict=True)) >= len(rows) - 1


class Ruled:
    """A grammar that allows certain tokens only."""

    def __init__(self, allowed: tuple[int, ...] | None) -> None:
        self._allowed = allowed

    def banned(self) -> np.ndarray | None:
        if self._allowed is None:
            return None
        banned = np.ones(90, bool)  # of a tokenizer that knows fewer than the model
        banned[list(self._allowed)] = False
        return banned


@pytest.mark.parametrize("n_prompt", [1, 20])
def test_a_grammar_binds_its_own_row(
    runner: GpuRunner, judge: Runner, device: str, n_prompt: int
) -> None:
    rows = []
    for i, rule in enumerate([(5,), None, (40, 41, 89), (), None]):
        constraint = None if rule == () else Ruled(rule)
        params = WARM if i % 2 else GREEDY
        asked = SampleRow(params, n_prompt, i, constraint=constraint)  # type: ignore[arg-type]
        rows.append(Row(ids(n_prompt, i), 0, table(n_prompt, 4 * i), asked, slot=i))
    got, want = runner.run(rows), judge.run(rows)
    assert got[0] is not None
    assert got[2] is not None
    assert got[0].token == 5
    assert got[2].token in (40, 41, 89)
    if device == "cpu":
        assert got == want


def test_probabilities_are_told(runner: GpuRunner, judge: Runner) -> None:
    told = SamplingParams(temperature=0.8, logprobs=3)
    rows = [
        Row(ids(1, 1), 0, (0,), SampleRow(told, 1, 5), slot=0),
        Row(ids(1, 2), 0, (1,), None, slot=1),
        Row(ids(1, 3), 0, (2,), sample(1, WARM, 3), slot=2),
    ]
    got, want = runner.run(rows), judge.run(rows)
    assert got[1] is None
    assert [r and r.token for r in got] == [r and r.token for r in want]
    assert got[0] is not None
    assert want[0] is not None
    assert got[0].logprob == pytest.approx(want[0].logprob, abs=1e-3)
    assert [token for token, _ in got[0].top] == [token for token, _ in want[0].top]


def test_padding_changes_no_live_row(folder: Path, device: str) -> None:
    """Three rows in a graph of four, five in one of six; the dummy block holds NaN."""
    runner = load(folder, device)
    assert runner.decode_sizes == (1, 2, 4, 6)
    rows = [Row(ids(1, seed=i), 0, (i,), None) for i in range(N_SEQS)]
    alone = torch.cat([runner.logits([row]) for row in rows])
    kept = runner._cache.data[:, :, : runner.n_blocks].clone()
    runner._cache.data[:, :, runner.n_blocks :] = float("nan")
    for n in range(1, N_SEQS + 1):
        assert torch.allclose(runner.logits(rows[:n]), alone[:n], rtol=1e-5, atol=1e-5), n
    now = runner._cache.data[:, :, : runner.n_blocks]
    assert torch.allclose(now, kept, rtol=1e-5, atol=1e-5), "something else was written"
    # larger batches leave tables and tokens behind where the smaller ones are padded
    assert torch.allclose(runner.logits(rows[:3]), alone[:3], rtol=1e-5, atol=1e-5)
    assert not torch.isfinite(runner._cache.data[:, :, runner.n_blocks :]).any()


def test_a_row_goes_on_from_its_own_slot(runner: GpuRunner) -> None:
    """The table of chosen tokens: slots in any order, kept over steps of others, no cross-talk."""
    starts = [prompt_row(p, table(90, 6 * i), slot) for i, (p, slot) in
              enumerate(zip(PROMPTS, (4, 0, 5, 2, 1), strict=True))]  # fmt: skip
    first = runner.run(starts[:3]) + runner.run(starts[3:])
    rows = [
        decode_row(chosen.token, len(row.token_ids), row.blocks, row.slot)
        for row, chosen in zip(starts, first, strict=True)
        if chosen is not None
    ]
    want = [runner.run([row])[0] for row in rows]
    for start in starts:
        runner.launch([start]).read()
    chunk = Row(ids(30, 50), 0, table(30, 40), None, slot=3)  # chooses nothing
    padding = Row((0,), 0, (45,), None)  # nobody's
    ahead = [Row((PENDING,), row.start, row.blocks, row.sample, slot=row.slot) for row in rows]
    mixed = runner.launch([ahead[1], chunk, ahead[0]])
    decode = runner.launch([ahead[4], padding, ahead[2], ahead[3]])
    assert mixed.read() == [want[1], None, want[0]]
    assert decode.read() == [want[4], None, want[2], want[3]]


def test_two_steps_may_be_under_way(runner: GpuRunner) -> None:
    prompt, blocks = ids(20, 3), table(60, 0)
    wanted = generate(runner, [prompt], 4, ahead=False)[0]
    first = runner.launch([prompt_row(prompt, blocks, 0)])
    second = runner.launch([decode_row(PENDING, 20, blocks, 0)])
    assert [s.token for s in first.read() if s] == wanted[:1]
    third = runner.launch([decode_row(PENDING, 21, blocks, 0)])
    assert [s.token for s in second.read() if s] == wanted[1:2]
    assert [s.token for s in third.read() if s] == wanted[2:3]


def test_guesses_are_checked_as_on_the_cpu(runner: GpuRunner, judge: Runner) -> None:
    prompt, blocks = ids(20, 3), table(60, 0)
    token, second, third = generate(runner, [prompt], 3, ahead=False)[0]
    assert runner.run([prompt_row(prompt, blocks, 0)]) == judge.run([prompt_row(prompt, blocks, 0)])
    for params in (GREEDY, WARM):
        row = Row((token, second, third, 1), 20, blocks, sample(21, params, 9), 3, slot=0)
        other = decode_row(5, 0, (50,), 1)
        assert runner.run([other, row, other]) == judge.run([other, row, other])


def test_a_step_larger_than_planned_for(folder: Path, device: str) -> None:
    """Padding of whole batches and guesses add tokens."""
    runner = load(folder, device, max_num_batched_tokens=16)
    rows = [Row(ids(40, i), 0, table(40, 3 * i), sample(40), slot=i) for i in range(4)]
    together = runner.run(rows)
    assert together == [runner.run([row])[0] for row in rows]
    small = runner.launch(rows[:1])  # read after a larger one has made the runner grow
    many = [Row(ids(10, i), 0, (i,), sample(10)) for i in range(20)]
    assert runner.run(many) == [runner.run([row])[0] for row in many]
    assert small.read() == together[:1]
    assert runner.run(many) == [runner.run([row])[0] for row in many]
    many = [Row(ids(1, i), 0, (i,), sample(1)) for i in range(N_SEQS + 3)]
    assert runner.run(many) == [runner.run([row])[0] for row in many]


def test_copied_rows_continue_like_the_original(runner: GpuRunner, device: str) -> None:
    prompt = ids(40)
    whole = runner.logits([Row(prompt, 0, (0, 1, 2), None)])[0]
    runner.copy_block(2, 9, 5)  # positions 32..36 of 32..39
    runner.copy_block(9, 11, 5)  # what the one before has written
    got = runner.logits([Row(prompt[37:], 37, (0, 1, 11), None)])[0]
    assert close(got, whole, device)


def test_a_cache_of_8_bits(folder: Path, device: str, runner: GpuRunner) -> None:
    """Near full precision (random weights amplify); chunks, decode steps and copied rows go on from
    codes and scales."""
    prompt = ids(40)
    small = load(folder, device, kv_cache="int8")
    full = runner.logits([Row(prompt, 0, (0, 1, 2), None)])[0]
    whole = small.logits([Row(prompt, 0, (0, 1, 2), None)])[0]
    off = float((whole - full).norm() / full.norm())
    assert 0 < off < 0.15
    small.copy_block(2, 9, 5)  # positions 32..36 of 32..39
    small.copy_block(9, 11, 5)
    copied = small.logits([Row(prompt[37:], 37, (0, 1, 11), None)])[0]
    alone = [small.logits([Row(prompt[at : at + 1], at, (0, 1, 11), None)])[0]
             for at in (37, 38, 39)][-1]  # fmt: skip
    for got in (copied, alone):  # a code may round the other way where sums differ in a last bit
        assert float((got - whole).norm() / whole.norm()) < 0.1 * off + 1e-4
    assert small.kv_bytes_per_block < runner.kv_bytes_per_block / 2
    assert small._cache.scales is not None
    assert bool((small._cache.scales[:, :, 2] > 0).any())


def test_memory_stays_where_it_is(runner: GpuRunner) -> None:
    held = [runner._cache.data, runner._tokens, runner._graphs.logits, runner._graphs.chosen,
            runner._decode._buffer, runner._mixed._buffer]  # fmt: skip
    before = [tensor.data_ptr() for tensor in held]
    generate(runner, PROMPTS, 12, ahead=True, params=WARM)
    after = [runner._cache.data, runner._tokens, runner._graphs.logits, runner._graphs.chosen,
             runner._decode._buffer, runner._mixed._buffer]  # fmt: skip
    assert [tensor.data_ptr() for tensor in after] == before


def test_a_slot_beyond_the_table_is_our_bug(runner: GpuRunner) -> None:
    with pytest.raises(InternalError, match="slot 6"):
        runner.launch([Row((1,), 0, (0,), sample(1), slot=6)])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"n_blocks": 1}, "2 or more"),
        ({"block_size": 8}, "16 or 32"),
        ({"quant": "int8"}, "not for a GPU"),
        ({"n_blocks": None, "kv_bytes": 1000}, "2 or more"),
        ({"n_blocks": None}, "must be given"),
        ({"device": "tpu"}, "cpu or cuda"),
    ],
)
def test_impossible_settings_are_refused(folder: Path, settings: dict, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        load(folder, **{"device": "cpu", **settings})


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_the_error_says_so(folder: Path) -> None:
    with pytest.raises(UsageError, match="no usable NVIDIA GPU"):
        load(folder, "cuda")


class SmallDevice(HostDevice):
    def memory(self) -> tuple[int, int]:
        return 600, 1000


def test_the_cache_takes_what_its_share_leaves() -> None:
    assert cache_bytes(SmallDevice(), 0.9, 100) == 900 - 400 - 100
    with pytest.raises(CapacityError, match="raise gpu_memory_utilization"):
        cache_bytes(SmallDevice(), 0.5, 100)


class StrictDevice(HostDevice):
    """Records no references, as a GPU; counts what it records."""

    records_references = False
    n_recorded = 0

    def capture(self, work: Callable[[], None], what: str) -> Callable[[], None]:
        self.n_recorded += 1
        return work


def test_without_kernels_steps_are_not_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(folder, "cpu").model
    device = StrictDevice()
    runner = GpuRunner(model, 8, max_num_seqs=4, max_num_batched_tokens=8, device=device)
    runner.prepare()
    assert device.n_recorded == 0
    assert "no graphs: kv_copy, kv_write" in caplog.text
    assert runner.run([decode_row(3, 0, (0,), 0)])[0] is not None
    monkeypatch.setattr("engine.gpu_runner.chosen", dict)
    runner.prepare()
    assert device.n_recorded == len(runner.decode_sizes) == 3


def test_random_weights_are_of_the_shape_and_the_seed(folder: Path) -> None:
    config = GpuLlama.load(
        folder, device="cpu", dtype=torch.float32, quant="dense", max_len=64
    ).config
    made = [GpuLlama.random(config, device="cpu", dtype=torch.float32, seed=seed, max_len=64)
            for seed in (1, 1, 2)]  # fmt: skip
    runners = [GpuRunner(model, 8, max_num_seqs=2) for model in made]
    row = Row(ids(20), 0, (0, 1), None)
    first, same, other = (runner.logits([row]) for runner in runners)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert 0.1 < first.std() < 10


@pytest.mark.gpu
def test_nothing_is_compiled_or_asked_of_the_driver_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_model.save("qwen3", tmp_path)
    runner = load(tmp_path, "cuda", quant="auto", max_num_batched_tokens=256)
    before = torch.cuda.memory_stats()["num_device_alloc"]
    generate(runner, PROMPTS, 20, ahead=True, params=WARM)
    for n in range(2, 200, 7):
        chunk = Row(ids(n), 0, table(n, 20), sample(n), slot=1)
        runner.run([chunk, decode_row(3, 0, (40,), 2)])
    assert torch.cuda.memory_stats()["num_device_alloc"] == before
    assert "compiled" not in caplog.text


@pytest.mark.gpu
def test_a_launch_does_not_wait_for_the_device(tmp_path: Path) -> None:
    tiny_model.save("llama", tmp_path)
    runner = load(tmp_path, "cuda")
    row = prompt_row(ids(1), (0,), 0)
    runner.run([row])
    with runner._device.work(-1):
        torch.cuda._sleep(200_000_000)
        under_way = runner._device.mark()
    step = runner.launch([row])
    assert not under_way.query()  # type: ignore[attr-defined]
    assert step.read() == runner.run([row])
