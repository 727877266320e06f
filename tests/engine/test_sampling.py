from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import choice
from engine.choice import choose, uniform
from engine.counts import TokenCounts
from engine.errors import UsageError
from engine.grammar.spec import Grammar
from engine.inputs import Sampled, SampleRow
from engine.sampling import SamplingParams

pytestmark = pytest.mark.unit

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def draws(logits: torch.Tensor, n: int = 400, **settings: Any) -> Counter[int]:
    params = SamplingParams(**{"temperature": 1.0, **settings})
    rows = [SampleRow(params, position, seed=11) for position in range(n)]
    return Counter(chosen.token for chosen in choose(logits.repeat(n, 1), rows))


def one(logits: torch.Tensor, history: list[int] = [], n_prompt: int = 0, **settings: Any) -> int:  # noqa: B006
    row = SampleRow(SamplingParams(**settings), 0, 0, history, n_prompt)
    return choose(logits[None], [row])[0].token


def test_greedy_takes_the_first_of_the_best() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, 0.5]])
    rows = [SampleRow(SamplingParams(), 3, 0)] * 2
    assert choose(logits, rows) == [Sampled(1), Sampled(0)]


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
    row = SampleRow(SamplingParams(logit_bias=((2, 50.0),), logprobs=0), 0, 0)
    chosen = choose(LOGITS[None], [row])[0]
    assert (chosen.token, chosen.top) == (2, ())
    assert chosen.logprob == pytest.approx(float(LOGITS.log_softmax(0)[2]), abs=1e-6)


def test_the_likeliest_come_best_first_whatever_was_chosen() -> None:
    want = LOGITS.log_softmax(0).tolist()
    for settings in ({}, {"temperature": 1.5}, {"logit_bias": ((4, 90.0),)}):
        row = SampleRow(SamplingParams(logprobs=3, **settings), 0, 5)
        chosen = choose(LOGITS[None], [row])[0]
        assert [token for token, _ in chosen.top] == [0, 1, 2]
        assert [share for _, share in chosen.top] == pytest.approx(want[:3], abs=1e-6)
        assert chosen.logprob == pytest.approx(want[chosen.token], abs=1e-6)
    few = choose(LOGITS[None], [SampleRow(SamplingParams(logprobs=20), 0, 0)])[0]
    assert len(few.top) == len(LOGITS)


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.integers(0, 5))
def test_company_and_order_do_not_matter(seed: int, position: int, others: int) -> None:
    logits = torch.randn(others + 1, 300, generator=torch.Generator().manual_seed(1))
    rows = [SampleRow(SamplingParams(temperature=0.9, top_p=0.9), position, seed + i)
            for i in range(others + 1)]  # fmt: skip
    together = choose(logits, rows)
    backwards = choose(logits.flip(0), rows[::-1])[::-1]
    alone = [choose(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert together == backwards == alone


MENU: tuple[dict[str, Any], ...] = (
    {}, {"logprobs": 2}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.6}, {"temperature": 1.2, "min_p": 0.1},
    {"temperature": 5.0}, {"temperature": 5.0, "top_p": 0.99}, {"temperature": 5.0, "min_p": 1e-3},
    {"repetition_penalty": 1.3}, {"temperature": 1.0, "presence_penalty": 1.0},
    {"frequency_penalty": -0.5, "logit_bias": ((7, 3.0), (8, -100.0)), "logprobs": 0},
)  # fmt: skip
"""Every setting, and every way through the choice: few candidates, all of them, sorted or not."""


@given(
    st.lists(st.sampled_from(MENU), min_size=1, max_size=12),
    st.lists(st.integers(0, 599), max_size=30),
    st.integers(0, 2**40),
)
def test_every_setting_in_one_batch_does_what_it_does_alone(menu, history, seed) -> None:
    logits = torch.randn(len(menu), 600, generator=torch.Generator().manual_seed(seed)) * 4
    before = logits.clone()
    rows = [
        SampleRow(SamplingParams(**settings), len(history), seed + i, history, len(history) // 2)
        for i, settings in enumerate(menu)
    ]
    alone = [choose(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert choose(logits, rows) == alone
    assert torch.equal(logits, before)


def test_a_row_pays_only_for_what_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    work: list[str] = []
    for name in ("_shaped", "_draw", "_told", "_penalise"):
        real = getattr(choice, name)
        monkeypatch.setattr(
            choice, name, lambda *a, real=real, name=name: (work.append(name), real(*a))[1]
        )
    plain = SampleRow(SamplingParams(), 0, 0)
    choose(LOGITS.repeat(9, 1), [plain] * 9)
    assert work == []
    others = [{"temperature": 1.0}, {"logprobs": 1}, {"repetition_penalty": 1.1}]
    rows = [plain] * 6 + [SampleRow(SamplingParams(**settings), 0, 0) for settings in others]
    choose(LOGITS.repeat(9, 1), rows)
    assert [work.count(name) for name in ("_draw", "_told", "_penalise")] == [1, 1, 1]
    row = LOGITS.numpy()
    assert choice._shaped(row, plain) is row  # no copy


@given(st.lists(st.integers(0, 300), min_size=1, max_size=300), st.data())
def test_counts_kept_over_steps_are_those_of_the_whole_history(history, data) -> None:
    n_prompt = data.draw(st.integers(0, len(history)))
    counts = TokenCounts()
    for end in sorted(data.draw(st.lists(st.integers(0, len(history)), max_size=5))):
        counts.catch_up(history[:end], n_prompt)
    counts.catch_up(history, n_prompt)
    said = Counter(history[n_prompt:])
    got = dict(zip(counts.seen.tolist(), counts.said.tolist(), strict=True))
    assert got == {token: said[token] for token in history}


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.97},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.0, "top_k": 600},
        {"temperature": 1.0, "top_k": 1500, "top_p": 0.3, "min_p": 0.7},
    ],
)
def test_beyond_the_first_candidates_shares_are_right(settings: dict[str, Any]) -> None:
    """Flat logits: most of the mass lies beyond the candidates that are looked at first."""
    logits = torch.linspace(0.0, -4.0, 2000)[torch.randperm(2000)]
    shares = logits.double().softmax(0).numpy()
    kept = np.sort(shares)[::-1][: settings.get("top_k")]
    if "top_p" in settings:
        kept = kept[np.cumsum(kept) - kept < settings["top_p"] * kept.sum()]
    if "min_p" in settings:
        kept = kept[kept >= settings["min_p"] * kept[0]]
    allowed = shares >= kept[-1]
    seen = draws(logits, 4000, **settings)
    assert all(allowed[token] for token in seen)
    fourths = np.array_split(np.argsort(-shares)[: len(kept)], 4)
    for part in fourths:
        want = shares[part].sum() / kept.sum()
        got = sum(seen[int(token)] for token in part) / 4000
        assert got == pytest.approx(want, abs=4 * math.sqrt(want / 4000))


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
        {"logit_bias": ((1, math.nan),)}, {"min_tokens": 300}, {"logprobs": 21}, {"logprobs": -1},
        {"ignore_eos": True, "grammar": Grammar("regex", "a")},
    ],
)  # fmt: skip
def test_impossible_settings_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings)).replace("stop", "stop string")):
        SamplingParams(**settings)


def test_a_bias_outside_the_vocabulary() -> None:
    with pytest.raises(UsageError, match="token 5"):
        one(LOGITS, logit_bias=((5, 1.0),))
