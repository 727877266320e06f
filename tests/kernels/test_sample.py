"""sample in plain PyTorch chooses what engine.choice chooses: what serves a GPU without Triton."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.choice import choose
from engine.inputs import SampleRow
from engine.sampling import SamplingParams
from kernels.sample.reference import sample
from kernels.sample.spec import MAX_VOCAB, sample_workspace
from tests.support.sample_rows import Fake, settings

pytestmark = pytest.mark.interp


def any_row(rng: random.Random, v: int) -> SampleRow:
    penalties = rng.random() < 0.4
    history = tuple(rng.randrange(v) for _ in range(9)) if penalties else ()
    banned = np.array([rng.random() < 0.7 for _ in range(v - 2)]) if rng.random() < 0.3 else None
    params = SamplingParams(
        temperature=rng.choice([0.0, 0.2, 1.0, 3.0]),
        top_k=rng.choice([0, 0, 2, 50, 700]),
        top_p=rng.choice([1.0, 1.0, 0.3, 0.95]),
        min_p=rng.choice([0.0, 0.0, 0.02, 1e-5]),
        repetition_penalty=1.3 if penalties else 1.0,
        presence_penalty=0.7 if penalties else 0.0,
        frequency_penalty=-0.3 if penalties else 0.0,
        logit_bias=((3, 2.5), (v - 1, -4.0)) if rng.random() < 0.3 else (),
    )
    return SampleRow(
        params, rng.randrange(4000), rng.getrandbits(64), history, n_prompt=4,
        constraint=None if banned is None else Fake(banned),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(("v", "scale"), [(33, 2.0), (700, 0.5), (700, 6.0), (2500, 2.0)])
def test_the_same_tokens_as_on_the_cpu(v: int, scale: float) -> None:
    rng = random.Random(v)
    rows = [any_row(rng, v) for _ in range(60)]
    logits = torch.randn(60, v, generator=torch.Generator().manual_seed(v)) * scale
    want = [told.token for told in choose(logits.clone(), rows)]
    assert sample(logits, settings(rows, v)).tolist() == want


def test_without_settings_the_first_of_the_largest() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [2.0, 2.0, 1.0]])
    assert sample(logits).tolist() == [1, 0]


def test_a_vocabulary_beyond_the_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 524288"):
        sample_workspace(1, MAX_VOCAB + 1, "meta")
