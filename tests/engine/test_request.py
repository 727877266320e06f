from __future__ import annotations

import itertools

import pytest

from engine.errors import InternalError
from engine.request import LEGAL, Request, State
from engine.sampling import SamplingParams

pytestmark = pytest.mark.unit


def make(params=None, n_prompt=5) -> Request:
    return Request(
        1,
        range(n_prompt),
        params or SamplingParams(),
        seed=0,
        max_new=5,
        arrival_s=0.0,
        deadline_s=1.0,
    )


def test_counters():
    request = make()
    assert (request.known, request.remaining, request.n_output) == (5, 5, 0)
    request.launched = 5
    request.tokens.append(9)
    assert (request.known, request.remaining, request.n_output) == (6, 1, 1)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(State, State)))
def test_only_legal_moves(old, new):
    request = make()
    request.state = old
    if (old, new) in LEGAL:
        request.move(new)
        assert request.state is new
    else:
        with pytest.raises(InternalError, match=f"{old.value} -> {new.value}"):
            request.move(new)


def test_the_end_is_final():
    assert not [move for move in LEGAL if move[0] is State.FINISHED]


def test_min_tokens_rules_the_ends_out_for_as_long():
    request = make(SamplingParams(min_tokens=2, max_tokens=9, logit_bias=((3, 1.0),)))
    request.rule_out({0, 7})
    bias = dict(request.sampling.logit_bias)
    assert bias[3] == 1.0
    assert bias[0] == bias[7] < -1e6
    request.tokens += [4, 4]
    assert request.sampling is request.params


def test_without_min_tokens_nothing_is_ruled_out():
    request = make()
    request.rule_out({0})
    assert request.sampling is request.params
