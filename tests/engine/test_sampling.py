from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.choice import choose, uniform
from engine.errors import UsageError
from engine.inputs import SampleRow
from engine.sampling import SamplingParams

pytestmark = pytest.mark.unit

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def draws(logits: torch.Tensor, n: int = 400, **settings: Any) -> Counter[int]:
    params = SamplingParams(**{"temperature": 1.0, **settings})
    rows = [SampleRow(params, position, seed=11) for position in range(n)]
    return Counter(token for token, _ in choose(logits.repeat(n, 1), rows))


def one(logits: torch.Tensor, history: list[int] = [], n_prompt: int = 0, **settings: Any) -> int:  # noqa: B006
    row = SampleRow(SamplingParams(**settings), 0, 0, history, n_prompt)
    return choose(logits[None].clone(), [row])[0][0]


def test_greedy_takes_the_first_of_the_best() -> None:
    token, logprob = choose(LOGITS[None].clone(), [SampleRow(SamplingParams(), 3, 0)])[0]
    assert token == 0
    assert logprob == pytest.approx(float(LOGITS.log_softmax(0)[0]), abs=1e-6)


def test_shares_follow_the_softmax() -> None:
    seen = draws(LOGITS, 6000)
    for token, share in enumerate(LOGITS.softmax(0).tolist()):
        assert seen[token] / 6000 == pytest.approx(share, abs=4 * math.sqrt(share / 6000) + 1e-3)


def test_temperature_sharpens() -> None:
    want = (LOGITS / 0.5).softmax(0)[0].item()
    assert draws(LOGITS, 3000, temperature=0.5)[0] / 3000 == pytest.approx(want, abs=0.03)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.8}, {0, 1}),
        ({"min_p": 0.3}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 2, "top_p": 0.99}, {0, 1}),
        ({"logit_bias": ((4, 100.0),)}, {4}),
        ({"temperature": 1e-6}, {0}),
    ],
)
def test_filters(settings: dict[str, Any], allowed: set[int]) -> None:
    assert set(draws(LOGITS, **settings)) == allowed


def test_large_vocabularies_fall_back_to_a_full_sort() -> None:
    """Flat logits: the first candidates hold little, yet every token must be possible."""
    seen = draws(torch.zeros(2000), 4000)
    assert max(seen) > 1900
    assert len(seen) > 1500
    assert set(draws(torch.zeros(2000), 4000, top_k=2)) <= set(range(2000))
    assert len(draws(torch.zeros(2000), 4000, top_k=2)) == 2


def test_penalties() -> None:
    logits = torch.tensor([1.0, 0.9, -0.5])
    assert one(logits, [0], repetition_penalty=2.0) == 1
    assert one(logits, [0], n_prompt=1, presence_penalty=1.0) == 0  # the prompt doesn't count
    assert one(logits, [0], presence_penalty=1.0) == 1
    assert one(logits, [0, 1, 1], frequency_penalty=0.2) == 0
    assert one(logits, [0, 0, 0, 1], frequency_penalty=0.2) == 1
    negative = torch.tensor([-1.0, -1.5])
    assert one(negative, [0], repetition_penalty=2.0) == 1


def test_logprob_is_the_models_own() -> None:
    row = SampleRow(SamplingParams(logit_bias=((2, 50.0),)), 0, 0)
    token, logprob = choose(LOGITS[None].clone(), [row])[0]
    assert token == 2
    assert logprob == pytest.approx(float(LOGITS.log_softmax(0)[2]), abs=1e-6)


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.integers(0, 5))
def test_company_and_order_do_not_matter(seed: int, position: int, others: int) -> None:
    logits = torch.randn(others + 1, 300, generator=torch.Generator().manual_seed(1))
    rows = [SampleRow(SamplingParams(temperature=0.9, top_p=0.9), position, seed + i)
            for i in range(others + 1)]  # fmt: skip
    together = choose(logits.clone(), rows)
    backwards = choose(logits.flip(0).clone(), rows[::-1])[::-1]
    alone = [choose(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]
    assert [t for t, _ in together] == [t for t, _ in backwards] == [t for t, _ in alone]


def test_uniform_is_uniform_and_keyed() -> None:
    values = np.array([uniform(5, i) for i in range(4000)])
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert abs(values.mean() - 0.5) < 0.02
    assert np.histogram(values, 10)[0].min() > 330
    assert uniform(5, 1) == uniform(5, 1)
    assert uniform(5, 1) != uniform(6, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": 6.0}, {"top_p": 0.0},
        {"top_p": 1.1}, {"top_k": -1}, {"min_p": 2.0}, {"repetition_penalty": 0.0},
        {"presence_penalty": 3.0}, {"frequency_penalty": math.inf}, {"max_tokens": 0},
        {"stop": ("",)}, {"stop": ("x",) * 17}, {"logit_bias": ((-1, 0.0),)},
        {"logit_bias": ((1, math.nan),)}, {"min_tokens": 300},
    ],
)  # fmt: skip
def test_impossible_settings_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings)).replace("stop", "stop string")):
        SamplingParams(**settings)


def test_a_bias_outside_the_vocabulary() -> None:
    with pytest.raises(UsageError, match="token 5"):
        one(LOGITS, logit_bias=((5, 1.0),))
