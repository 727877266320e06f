from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.budget import Calibration, CostModel, StepBudget, fit

pytestmark = pytest.mark.unit


def test_fit_recovers_a_straight_line():
    model = fit([(n, 17.0 + 0.4 * n) for n in (1, 2, 8, 64, 256)])
    assert model.base_ms == pytest.approx(17.0)
    assert model.per_token_ms == pytest.approx(0.4)


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(0.01, 5000.0)), min_size=1, max_size=9))
def test_fit_is_never_negative(samples):
    model = fit(samples)
    assert model.base_ms >= 0.0
    assert model.per_token_ms > 0.0


def test_fit_needs_a_sample():
    with pytest.raises(ValueError, match="at least one"):
        fit([])


def test_chunks_of_a_long_prompt_each_pay_the_base():
    model = CostModel(10.0, 0.5)
    assert model.tokens_within(60.0) == 100
    assert model.tokens_within(5.0) == 0
    assert model.ms(0) == 0.0
    assert model.total_ms(250, 60.0) == pytest.approx(3 * 10 + 125)
    assert model.total_ms(0, 60.0) == 0.0


def test_calibration_follows_the_median_of_a_window():
    calibration = Calibration(CostModel(10.0, 0.5))
    given_back = [calibration.note(20, 40.0 if n % 8 else 4000.0) for n in range(32)]
    assert given_back[:-1] == [None] * 31
    assert given_back[-1] == CostModel(20.0, 1.0)
    for _ in range(31):
        assert calibration.note(20, 0.0) is None, "a clock that stands still says nothing"
        assert calibration.note(20, 1000.0) is None
    assert calibration.note(20, 1000.0) == CostModel(40.0, 2.0), "four times at most"


def test_budget_shrinks_with_slack_but_prompts_still_progress():
    budget = StepBudget(CostModel(10.0, 0.5), 60.0, 256, 16)
    assert budget.limit_ms(None) == 60.0
    assert budget.limit_ms(5.0) == 60.0
    assert StepBudget(CostModel(5.0, 0.5), 60.0, 256, 16).limit_ms(0.05) == pytest.approx(50.0)
    assert StepBudget(CostModel(5.0, 0.5), 60.0, 256, 16).limit_ms(-1.0) == 30.0, "mostly rows"
    assert budget.limit_ms(-1.0) == 60.0
    assert budget.tokens(50.0) == 80
    assert budget.tokens(5.0) == 20, "twice the fixed cost"
    assert budget.most_tokens == 100
    assert budget.prefill_tokens(60.0, 8) == 92
    assert budget.prefill_tokens(0.0, 8) == 16
    assert budget.prefill_tokens(1000.0, 8) == 248
    assert budget.prefill_tokens(60.0, 256) == 0


def test_a_token_far_into_a_context_counts_for_more():
    cost = CostModel(10.0, 0.5, per_position=0.001)
    assert cost.weight(1, 0) == pytest.approx(1.0, abs=0.001)
    assert cost.weight(1, 4000) == pytest.approx(5.0, abs=0.001)
    assert cost.weight(100, 0) == pytest.approx(cost.weight(40, 0) + cost.weight(60, 40))
    assert cost.scaled(2.0) == CostModel(20.0, 1.0, per_position=0.001)


@pytest.mark.parametrize("per_position", [0.0, 1e-9, 0.001, 0.5])
@pytest.mark.parametrize("start", [0, 1, 700, 8000])
def test_what_fits_counts_as_no_more_and_one_more_would(per_position: float, start: int):
    cost = CostModel(10.0, 0.5, per_position)
    for weight in (0.5, 1.0, 3.0, 64.0, 500.0):
        n = cost.fitting(weight, start)
        assert n == 1 or cost.weight(n, start) <= weight * (1 + 1e-6)
        assert cost.weight(n + 1, start) > weight * (1 - 1e-6)


def test_decode_rows_with_long_contexts_leave_less_room_for_prompts():
    budget = StepBudget(CostModel(10.0, 0.5, 0.001), 60.0, 256, 16)
    assert budget.prefill_tokens(60.0, 8) == 92
    assert budget.prefill_tokens(60.0, 8, weight=8 + 0.001 * 8 * 4000) == 60
