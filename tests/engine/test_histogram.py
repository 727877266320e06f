from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.histogram import SECONDS, Histogram

pytestmark = pytest.mark.unit


def test_nothing_has_no_quantile():
    assert Histogram().snapshot().quantile(0.5) == 0.0


def test_a_value_on_a_bound_is_at_most_that_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert snapshot.counts == (1, 2, 1)
    assert (snapshot.n, snapshot.total) == (4, 7.0)
    assert snapshot.quantile(1.0) == 2.0, "what lies beyond the last bound is told as that"


@given(st.lists(st.floats(0.0, 29.0), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values, q):
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    true = sorted(values)[min(len(values) - 1, max(0, -int(-q * len(values) // 1) - 1))]
    above = next(bound for bound in SECONDS if true <= bound)
    below = max((bound for bound in SECONDS if bound < above), default=0.0)
    assert below <= histogram.snapshot().quantile(q) <= above
