"""Real models against `transformers` on the same dequantised weights.

Tolerances. fp32: every logit within 2e-3 (they span tens); the cause is the order of sums. int8:
the product rounds weights and activations to 8 bits, so the cosine of the logits is at least 0.98
on average and 0.8 anywhere; the likeliest token agrees wherever the exact lead over the second is
at least 2 logits, and at 85 % of all positions or more. native: the codes are the file's and only
activations round, in groups of 32: a cosine of 0.999 on average and 0.98 anywhere, the same token
wherever the lead is 1 logit, and at 93 % of all positions or more.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.inputs import Row, SampleRow
from engine.models.batch import make_batch
from engine.models.layers import Quant
from engine.runner import Runner
from engine.sampling import SamplingParams
from engine.text.load import load_text
from tests.support import native
from tests.support.judge import transformers_model

TEXT = (
    "Could you tell me what time the museum opens tomorrow, and whether I need to book a ticket? "
    "Of course. The museum opens at nine in the morning and closes at five. Tickets cost 12 euros; "
    "you can buy them at the door, but in summer it's better to book online."
)


@dataclass(frozen=True, slots=True)
class Case:
    path: Path
    ids: list[int]
    want: Tensor
    """fp32 [n, vocab], of `transformers`."""


def case(path: Path) -> Case:
    tokenizer, chat = load_text(path)
    ids = chat.system("You are a helpful guide.") + chat.user(TEXT) + chat.assistant_open()
    ids += tokenizer.encode("The museum opens at nine in the morning.")
    model = transformers_model(path)
    with torch.inference_mode():
        want = model(torch.tensor([ids])).logits[0].clone()
    del model
    gc.collect()
    return Case(path, ids, want)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Case:
    return case(smollm2_path)


@pytest.fixture(scope="module")
def qwen(qwen_path: Path) -> Case:
    return case(qwen_path)


def all_logits(case: Case, quant: Quant) -> Tensor:
    """fp32 [n, vocab]: a prefill of all but the last 8 tokens, then token by token."""
    runner = Runner.load(case.path, n_blocks=32, quant=quant, max_model_len=512)
    blocks = tuple(reversed(range(16)))
    n = len(case.ids) - 8
    rows = [Row(tuple(case.ids[:n]), 0, blocks, None)]
    batch = make_batch(rows, [0])
    first = runner._forward(replace(batch, wanted=np.arange(n)))
    rest = [
        runner.logits([Row((token,), i, blocks, None)])[0]
        for i, token in enumerate(case.ids[n:], start=n)
    ]
    return torch.cat((first, torch.stack(rest)))


def check_exact(case: Case) -> None:
    got = all_logits(case, "fp32")
    assert (got - case.want).abs().max() < 2e-3
    assert (got.argmax(-1) == case.want.argmax(-1)).float().mean() > 0.99


def check_int8(case: Case) -> None:
    got = all_logits(case, "int8")
    cosine = torch.nn.functional.cosine_similarity(got, case.want, -1)
    assert cosine.mean() > 0.98
    assert cosine.min() > 0.8
    same = got.argmax(-1) == case.want.argmax(-1)
    top = case.want.topk(2, -1).values
    assert same[top[:, 0] - top[:, 1] >= 2.0].all()
    assert same.float().mean() >= 0.85


def check_native(case: Case) -> None:
    native.library()
    got = all_logits(case, "native")
    cosine = torch.nn.functional.cosine_similarity(got, case.want, -1)
    assert cosine.mean() > 0.999
    assert cosine.min() > 0.98
    same = got.argmax(-1) == case.want.argmax(-1)
    top = case.want.topk(2, -1).values
    assert same[top[:, 0] - top[:, 1] >= 1.0].all()
    assert same.float().mean() >= 0.93


@pytest.mark.model
def test_smollm2_fp32(smollm2: Case) -> None:
    check_exact(smollm2)


@pytest.mark.model
def test_smollm2_int8(smollm2: Case) -> None:
    check_int8(smollm2)


@pytest.mark.model
def test_smollm2_native(smollm2: Case) -> None:
    """The file's own 4-bit codes, activations rounded in groups of 32: close to exact."""
    check_native(smollm2)


@pytest.mark.slow
def test_qwen_native(qwen: Case) -> None:
    check_native(qwen)


@pytest.mark.slow
def test_qwen_fp32(qwen: Case) -> None:
    check_exact(qwen)


@pytest.mark.slow
def test_qwen_int8(qwen: Case) -> None:
    check_int8(qwen)


@pytest.mark.model
def test_smollm2_knows_a_capital(smollm2_path: Path) -> None:
    """The weights mean something: a wrong head layout gives noise here."""
    tokenizer, chat = load_text(smollm2_path)
    runner = Runner.load(smollm2_path, n_blocks=16, max_model_len=256)
    ids = chat.system("You are a helpful assistant.")
    ids += chat.user("What is the capital of France?") + chat.assistant_open()
    ids += tokenizer.encode("The capital")  # "The" and "La" are likely to a few hundredths alike
    blocks, out = tuple(range(8)), []
    step = Row(tuple(ids), 0, blocks, SampleRow(SamplingParams(), len(ids), 0))
    while len(out) < 16:
        result = runner.run([step])[0]
        assert result is not None
        if result.token in tokenizer.ends:
            break
        out.append(result.token)
        at = len(ids) + len(out) - 1
        step = Row((result.token,), at, blocks, SampleRow(SamplingParams(), at + 1, 0))
    assert "Paris" in tokenizer.decode(out)


@pytest.mark.model
def test_a_batch_of_real_rows_is_bit_identical(smollm2_path: Path) -> None:
    """Chunked, mixed and decoded in company: the same bits as alone."""
    tokenizer, _ = load_text(smollm2_path)
    ids = tuple(tokenizer.encode(TEXT * 4))[:190]
    runner = Runner.load(smollm2_path, n_blocks=128, max_model_len=512)
    whole = runner.logits([Row(ids, 0, tuple(range(12)), None)])[0]
    for sizes in ((1,) * 8 + (182,), (64, 64, 62), (100, 89, 1), (7, 130, 53)):
        at = 0
        for size in sizes:
            last = runner.logits([Row(ids[at : at + size], at, tuple(range(20, 32)), None)])[0]
            at += size
        assert torch.equal(last, whole), sizes
    rows = [Row(ids[189:190], 189, tuple(range(12)), None)]
    for i in range(12):
        n = 3 + 5 * i
        blocks = tuple(range(40 + 6 * i, 46 + 6 * i))
        runner.run([Row(ids[:n], 0, blocks, None)])
        rows.append(Row(ids[n : n + 1 + i % 3], n, blocks, None))
    together = runner.logits(rows)
    assert torch.equal(together[0], whole)
    for row, got in zip(rows, together, strict=True):
        assert torch.equal(runner.logits([row])[0], got)
