from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.headroom import Demand, future_peak

pytestmark = pytest.mark.unit


def test_nobody_needs_nothing():
    assert future_peak(0, [], 16) == 0
    assert future_peak(3, [], 16) == 3


def test_one_request_needs_its_blocks_exactly():
    assert future_peak(0, [Demand(17, 15, 0)], 16) == 2
    assert future_peak(0, [Demand(17, 16, 0)], 16) == 3
    assert future_peak(1, [Demand(17, 16, 1)], 16) == 3


def test_those_who_end_early_make_room():
    """40 + 40 tokens now; one more token each, then the second goes on alone to 100."""
    both = [Demand(40, 1, 0), Demand(40, 60, 0)]
    assert future_peak(0, both, 4) == max(11 + 11, 25)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), max_size=6),
    st.sampled_from([1, 4, 16]),
)
def test_equals_a_simulation(requests, size):
    """Every request adds one token a step and leaves when it has all of its own."""
    worst = 0
    for t in range(41):
        used = sum(-(-(known + t) // size) for known, left in requests if t <= left)
        worst = max(worst, used)
    assert future_peak(0, [Demand(k, left, 0) for k, left in requests], size) == worst
