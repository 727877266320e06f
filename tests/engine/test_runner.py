"""One result however a request is cut, batched or moved."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.config import KvPrecision
from engine.errors import UsageError
from engine.inputs import Row, Sampled, SampleRow
from engine.models.layers import Quant
from engine.models.native import NativeLlama
from engine.runner import Runner
from engine.sampling import SamplingParams
from tests.support import native, tiny_model

pytestmark = pytest.mark.unit

GREEDY = SamplingParams()
TOLD = SamplingParams(logprobs=0)
WARM = SamplingParams(temperature=1.0, top_p=0.9)


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
    return Runner.load(folder, n_blocks=128, quant=quant, threads=1, kv_cache=kv or "full")


def ids(n: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(tiny_model.VOCAB), k=n))


def table(n: int, first: int) -> tuple[int, ...]:
    """Blocks in no helpful order."""
    blocks = list(range(first, first + -(-n // 16)))
    random.Random(n).shuffle(blocks)
    return tuple(blocks)


def sample(position: int, params: SamplingParams = GREEDY, seed: int = 0) -> SampleRow:
    return SampleRow(params, position, seed)


def generate(
    runner: Runner,
    prompt: tuple[int, ...],
    n: int,
    *,
    first: int,
    chunks: tuple[int, ...] = (),
    params: SamplingParams = GREEDY,
) -> list[int]:
    """n tokens after a prompt that is computed in the given chunk sizes (then in one piece)."""
    blocks = table(len(prompt) + n, first)
    at, token = 0, -1
    sizes = [*chunks]
    while at < len(prompt):
        size = min(sizes.pop(0) if sizes else len(prompt), len(prompt) - at)
        ends = at + size == len(prompt)
        chunk = Row(
            prompt[at : at + size], at, blocks, sample(len(prompt), params) if ends else None
        )
        result = runner.run([chunk])[0]
        assert (result is not None) == ends
        at += size
        if result is not None:
            token = result.token
    out = [token]
    while len(out) < n:
        where = len(prompt) + len(out) - 1
        result = runner.run([Row((out[-1],), where, blocks, sample(where + 1, params))])[0]
        assert result is not None
        out.append(result.token)
    return out


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_chunked_prefill_gives_the_same_tokens(runner: Runner, params: SamplingParams) -> None:
    prompt = ids(190)
    whole = generate(runner, prompt, 8, first=0, params=params)
    for chunks in ((1,), (2, 3), (16, 16, 16), (17, 1, 100), (189,), (1,) * 20, (64,) * 3):
        assert generate(runner, prompt, 8, first=40, chunks=chunks, params=params) == whole, chunks


def test_a_mixed_batch_changes_nobody(runner: Runner) -> None:
    """Bit-identical logits of int8 weights; the same tokens in fp32."""
    lengths = [1, 2, 5, 16, 17, 33, 64, 100, 129, 200]
    alone = []
    for i, n in enumerate(lengths):
        prompt = ids(n, seed=i)
        if n > 1:  # leave the last token to a decode row for every second one
            cut = n - 1 if i % 2 else n // 2
            runner.run([Row(prompt[:cut], 0, table(n, first=0), None)])
            alone.append(runner.logits([Row(prompt[cut:], cut, table(n, first=0), None)])[0])
        else:
            alone.append(runner.logits([Row(prompt, 0, table(n, first=0), None)])[0])
    rows, first = [], 0
    for i, n in enumerate(lengths):
        prompt, blocks = ids(n, seed=i), table(n, first)
        first += len(blocks)
        cut = 0 if n == 1 else n - 1 if i % 2 else n // 2
        if cut:
            runner.run([Row(prompt[:cut], 0, blocks, None)])
        rows.append(Row(prompt[cut:], cut, blocks, None))
    for order in (rows, rows[::-1]):
        together = runner.logits(order)
        want = alone if order is rows else alone[::-1]
        for got, expected in zip(together, want, strict=True):
            if runner_is_int8(runner):
                assert torch.equal(got, expected)
            else:
                assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4)
                assert got.argmax() == expected.argmax()


def runner_is_int8(runner: Runner) -> bool:
    model = runner.model
    return isinstance(model, NativeLlama) or type(model.head).__name__ == "linear_w8"


@pytest.mark.parametrize("quant", ["int8", "native"])
def test_decode_batches_of_every_size_are_bit_identical(folder: Path, quant: Quant) -> None:
    if quant == "native":
        native.library()
    runner = Runner.load(folder, n_blocks=32, quant=quant)
    rows = [Row(ids(1, seed=i), 0, (i,), None) for i in range(32)]
    alone = torch.cat([runner.logits([row]) for row in rows])
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32):
        assert torch.equal(runner.logits(rows[:n]), alone[:n]), n
        assert torch.equal(runner.logits(rows[-n:]), alone[-n:]), n


def test_a_second_thread_changes_no_bit(folder: Path) -> None:
    native.library()
    rows = [Row(ids(n, seed=n), 0, table(n, first=5 * i), None)
            for i, n in enumerate((1, 40, 1, 7, 64, 3))]  # fmt: skip
    one, two = (Runner.load(folder, n_blocks=40, quant="native", threads=n) for n in (1, 2))
    want = one.logits(rows)
    for _ in range(20):  # workers that sleep, spin or come late
        assert torch.equal(two.logits(rows), want)


def test_copied_rows_continue_like_the_original(runner: Runner) -> None:
    prompt = ids(40)
    whole = runner.logits([Row(prompt, 0, (0, 1, 2), None)])[0]
    runner.copy_block(2, 9, 5)  # positions 32..36 of 32..39
    got = runner.logits([Row(prompt[37:], 37, (0, 1, 9), None)])[0]
    assert torch.allclose(got, whole, rtol=1e-4, atol=1e-4)
    if runner_is_int8(runner):
        assert torch.equal(got, whole)


def test_a_copy_leaves_the_other_rows_alone(runner: Runner) -> None:
    runner.run([Row(ids(16, seed=1), 0, (3,), None), Row(ids(16, seed=2), 0, (4,), None)])
    before = runner.logits([Row(ids(1, seed=3), 16, (4, 5), None)])[0]
    runner.run([Row(ids(16, seed=2), 0, (6,), None)])
    runner.copy_block(3, 6, 0)
    assert torch.equal(runner.logits([Row(ids(1, seed=3), 16, (6, 5), None)])[0], before)


def test_results_come_in_the_rows_order(runner: Runner) -> None:
    rows = [
        Row(ids(7, seed=0), 0, (0,), None),
        Row(ids(1, seed=1), 0, (1,), sample(1, TOLD)),
        Row(ids(20, seed=2), 0, (2, 3), sample(20, TOLD)),
        Row(ids(1, seed=3), 0, (4,), None),
    ]
    results = runner.run(rows)
    assert [result is None for result in results] == [True, False, False, True]
    for i in (1, 2):
        logits = runner.logits([rows[i]])[0]
        result = results[i]
        assert isinstance(result, Sampled)
        assert result.token == logits.argmax()
        assert result.logprob == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-3)


def test_sampled_tokens_ignore_the_company(runner: Runner) -> None:
    rows = [Row(ids(5 + i, seed=i), 0, (i,), sample(5 + i, WARM, seed=100 + i)) for i in range(8)]
    together = [result.token for result in runner.run(rows) if result]
    alone = [result.token for row in rows for result in runner.run([row]) if result]
    assert together == alone


@pytest.mark.parametrize(("kv_cache", "row"), [("full", 64), ("auto", 64), ("int8", 36)])
def test_cache_size_follows_the_bytes(kv_cache: KvPrecision, row: int, tmp_path: Path) -> None:
    """row: bytes of a position of one head's keys or values."""
    native.library()
    tiny_model.save("llama", tmp_path)
    runner = Runner.load(tmp_path, kv_bytes=10_000_000, kv_cache=kv_cache)
    c = runner.model.config
    per_block = row * 2 * c.layers * c.kv_heads * 16
    assert c.head_dim == 32
    assert runner.kv_bytes_per_block == per_block
    assert runner.n_blocks == 10_000_000 // per_block
    assert runner.max_model_len == 512


def test_8_bits_without_the_native_kernels_are_told_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = Runner.load(folder, n_blocks=4, quant="int8", kv_cache="int8")
    assert "kv_cache = int8 needs the native kernels" in caplog.text
    row = Row(ids(20), 0, (2, 1), None)
    want = Runner.load(folder, n_blocks=4, quant="int8").logits([row])
    assert torch.equal(runner.logits([row]), want)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"n_blocks": 1}, "2 or more"),
        ({}, "must be given"),
        ({"n_blocks": 4, "block_size": 24}, "divide"),
        ({"kv_bytes": 1000}, "2 or more"),
    ],
)
def test_impossible_sizes_are_refused(folder: Path, settings: dict[str, int], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Runner.load(folder, **settings)  # type: ignore[arg-type]


def test_an_id_beyond_the_vocabulary_is_refused(runner: Runner) -> None:
    with pytest.raises(IndexError):
        runner.logits([Row((tiny_model.VOCAB,), 0, (1,), None)])
