"""Tokens chosen by the Triton kernels are those of engine.choice, for the same logits and seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.choice import choose, uniform
from engine.inputs import SampleRow
from engine.sampling import SamplingParams
from kernels import tuning
from kernels.sample import reference
from kernels.sample import triton as kernel
from kernels.sample.spec import CANDIDATES, Workspace, sample_workspace
from kernels.sample.triton import sample
from tests.support.sample_rows import Fake, settings

pytestmark = pytest.mark.interp


@pytest.fixture(autouse=True)
def large_tiles() -> Iterator[None]:
    """The interpreter's cost is per operation, whatever its size."""
    with tuning.using({"sample": {"choose": {"BLOCK": 4096}}}):
        yield


def row(position: int = 5, seed: int = 1, **params: Any) -> SampleRow:
    history = params.pop("history", ())
    banned = params.pop("banned", None)
    constraint: Any = None if banned is None else Fake(banned)
    return SampleRow(
        SamplingParams(**{"temperature": 0.8, **params}), position, seed, history,
        n_prompt=len(history) // 2, constraint=constraint,
    )  # fmt: skip


def logits_of(b: int, v: int, scale: float, seed: int = 0) -> Tensor:
    """[b, v] without equals, inside a wider tensor of NaN."""
    wide = torch.full((b, v + 9), math.nan)
    wide[:, :v] = torch.randn(b, v, generator=torch.Generator().manual_seed(seed)) * scale
    return wide[:, :v]


def dirty(b: int, v: int) -> Workspace:
    work = sample_workspace(b, v, "cpu")
    for field in fields(work):
        part = getattr(work, field.name)
        part.fill_(math.nan if part.is_floating_point() else -7)
    return work


def same_as_cpu(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    want = [told.token for told in choose(logits.clone(), rows)]
    b, v = logits.shape
    got = sample(logits.clone(), settings(rows, v), dirty(b, v))
    assert got.tolist() == want


def late(share: float) -> int:
    """A seed whose draw for position 5 is at least this share."""
    return next(seed for seed in range(10**6) if uniform(seed, 5) >= share)


@triton.jit
def _draws(seeds, positions, out):
    at = tl.program_id(0)
    tl.store(out + at, kernel._uniform(tl.load(seeds + at), tl.load(positions + at)))


def test_random_numbers_are_those_of_the_cpu() -> None:
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789])
    positions = torch.tensor([0, 1, 2**40, 7, 8191, 3])
    out = torch.zeros(6, dtype=torch.float64)
    _draws[(6,)](seeds, positions, out)
    assert out.tolist() == [
        uniform(s, p) for s, p in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]


def test_filters() -> None:
    """One batch, every row with settings of its own; steep logits, so few candidates."""
    rows = [
        row(temperature=0.0), row(), row(seed=late(0.9999)), row(top_k=1), row(top_k=40),
        row(top_p=0.9, seed=-3), row(min_p=0.05), row(top_k=200, top_p=0.8, min_p=0.001),
        row(temperature=5.0, top_p=0.99999, seed=late(0.999)), row(top_k=5000, position=2**33),
    ]  # fmt: skip
    same_as_cpu(logits_of(len(rows), 1000, 3.0), rows)


def test_more_candidates_than_are_kept_aside() -> None:
    """Flat logits: the whole row is searched, and draws beyond the first candidates go by id."""
    v = CANDIDATES + 900
    rows = [
        row(), row(seed=late(0.99)), row(top_k=300), row(top_p=0.97, seed=late(0.9)),
        row(min_p=0.01, seed=late(0.5)), row(min_p=1e-6, temperature=0.3),
    ]  # fmt: skip
    same_as_cpu(logits_of(len(rows), v, 1.0), rows)


def test_penalties_biases_and_grammar() -> None:
    v = 300
    said = (7, 9, 7, 250, 9, 9, 299)
    banned = np.ones(v - 4, np.bool_)
    banned[::3] = False
    rows = [
        row(temperature=0.0, repetition_penalty=1.7, history=said),
        row(presence_penalty=0.6, frequency_penalty=0.3, history=said),
        row(logit_bias=((9, 4.5), (0, -100.0)), repetition_penalty=0.8, history=said),
        row(banned=banned, logit_bias=((1, 50.0),)),
        row(banned=banned, temperature=0.0),
    ]
    same_as_cpu(logits_of(len(rows), v, 2.0), rows)


def test_scores_after_penalties_are_those_of_the_cpu() -> None:
    from engine.choice import _shaped

    logits = logits_of(3, 64, 3.0)
    p = {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": -0.1}
    rows = [row(**p, history=(1, 5, 6, 5, 63)), row(), row(logit_bias=((3, 0.1), (63, -1.3)))]
    shaped = logits.clone()
    sample(shaped, settings(rows, 64))
    for at, given in enumerate(rows):
        assert shaped[at].tolist() == _shaped(logits[at].numpy(), given).tolist()


def test_equals_go_by_id() -> None:
    rows = [row(temperature=0.0), row(top_k=3), row(top_k=30), row(top_p=0.5), row(top_k=1)]
    same_as_cpu((logits_of(5, 200, 1.0) * 2).round() / 2, rows)
    many = (logits_of(5, 900, 1.0) * 2).round() / 2  # which of equals the CPU takes is open
    given = settings(rows, 900)
    assert torch.equal(sample(many, given), reference.sample(many, given))


def test_a_row_alone_is_the_row_in_company() -> None:
    logits = logits_of(3, 5000, 2.0)
    rows = [row(seed=3), row(top_p=0.9, seed=4), row(temperature=0.0)]
    together = sample(logits, settings(rows, 5000)).tolist()
    assert together == [
        int(sample(logits[i : i + 1], settings(rows[i : i + 1], 5000))) for i in range(3)
    ]
    assert int(sample(logits)[1]) == int(logits[1].argmax())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about exactly that
def test_nothing_to_choose_from() -> None:
    """Rows of padding may hold anything: some token of the vocabulary comes out."""
    logits = torch.stack([torch.full((70,), math.nan), torch.full((70,), -math.inf)])
    for temperature in (0.0, 1.0):
        rows = [row(temperature=temperature), row(temperature=temperature)]
        got = sample(logits.clone(), settings(rows, 70))
        assert ((got >= 0) & (got < 70)).all()
    assert sample(logits[:0]).shape == (0,)


def test_rows_beyond_2_to_the_31_elements() -> None:
    """The last row lies beyond what 32 bits address, its penalties and candidates too."""
    near, stride = logits_of(3, 300, 2.0), 2**30 + 16
    far = torch.empty(2 * stride + 300).as_strided((3, 300), (stride, 1)).copy_(near)
    said = (7, 9, 7, 250)
    rows = [
        row(temperature=0.0), row(top_p=0.9), row(presence_penalty=0.6, history=said, seed=9),
    ]  # fmt: skip
    want = sample(near, settings(rows, 300))
    assert torch.equal(sample(far, settings(rows, 300)), want)
    assert torch.equal(far, near)


def test_a_workspace_that_is_too_small_is_refused() -> None:
    for rows, vocab in ((2, 5000), (3, 4000)):
        with pytest.raises(ValueError, match="a workspace of their size"):
            sample(torch.zeros(3, 5000), None, sample_workspace(rows, vocab, "cpu"))


@pytest.mark.slow
def test_any_settings() -> None:
    rng = random.Random(3)
    for trial in range(40):
        v, scale = rng.choice([33, 700, 2500]), rng.choice([0.5, 2.0, 6.0])
        rows = [
            row(
                position=rng.randrange(4000), seed=rng.getrandbits(64),
                temperature=rng.choice([0.2, 1.0, 3.0]), top_k=rng.choice([0, 0, 2, 50, 700]),
                top_p=rng.choice([1.0, 1.0, 0.3, 0.95]), min_p=rng.choice([0.0, 0.0, 0.02, 1e-5]),
            )
            for _ in range(8)
        ]  # fmt: skip
        same_as_cpu(logits_of(8, v, scale, trial), rows)
