from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculate.gain import HOPE, faded, learned, worth

pytestmark = pytest.mark.unit

rates = st.floats(0.0, 1.0)
times = st.floats(0.01, 100.0)


@given(rates, st.integers(0, 8), st.integers(0, 8))
def test_the_average_stays_a_share_and_moves_towards_what_was_seen(rate, n_right, n_wrong):
    after = learned(rate, n_right, n_right + n_wrong)
    assert 0.0 <= after <= 1.0
    if n_wrong == 0:
        assert after >= rate
    if n_right == 0 and n_wrong:
        assert after <= rate
    assert learned(rate, n_right, n_right + 1) == learned(rate, n_right, n_right + 5)


def test_a_bad_guesser_is_left_alone_for_some_dozens_of_tokens():
    rate, tried, waited = HOPE, 0, 0
    while k := worth(rate, 4, 1.0, 10.0, 3.0):
        rate = learned(rate, 0, k)
        tried += 1
    while not worth(rate, 4, 1.0, 10.0, 3.0):
        rate = faded(rate)
        waited += 1
    assert 3 <= tried < 20
    assert 1 <= waited < 100


@given(rates, st.integers(0, 6), st.integers(1, 32), times, times)
def test_as_many_as_make_tokens_come_fastest(rate, most, n_tokens, step_ms, guess_ms):
    def speed(k: int) -> float:
        return (n_tokens + sum(rate**i for i in range(1, k + 1))) / (step_ms + k * guess_ms)

    k = worth(rate, most, n_tokens, step_ms, guess_ms)
    assert 0 <= k <= most
    assert speed(k) == pytest.approx(max(map(speed, range(most + 1))))


def test_a_step_that_is_all_rows_gains_nothing():
    per_token_ms = 0.5
    assert worth(0.9, 4, 1.0, 10.0 + per_token_ms, per_token_ms) == 4
    assert worth(0.9, 4, 400.0, 10.0 + 400 * per_token_ms, per_token_ms) == 0
