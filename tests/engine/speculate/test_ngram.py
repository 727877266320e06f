from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.prefix import Scope
from engine.sampling import SamplingParams
from engine.speculate.ngram import LONGEST, SHORTEST, WINDOW, NgramProposer, lookup
from engine.speculate.proposer import Ask

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("tokens", "k", "guess"),
    [
        ([], 3, ()),
        ([1], 3, ()),
        ([1, 2, 3], 3, ()),
        ([1, 2, 3, 9, 3], 3, ()),  # one token says too little
        ([5, 1, 2, 3, 4, 5, 6, 1, 2], 3, (3, 4, 5)),
        ([1, 2, 3, 7, 1, 2, 4, 7, 1, 2], 1, (4,)),  # the latest of equals
        ([9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], 1, (3,)),  # the longer end goes before the later one
        ([1, 2, 1, 2], 5, (1, 2, 1, 2, 1)),  # a repetition goes on
        ([7, 7, 7], 4, (7, 7, 7, 7)),
    ],
)
def test_what_followed_before_is_guessed(tokens, k, guess):
    assert lookup(tokens, k) == guess


def brute(tokens: list[int], k: int) -> tuple[int, ...]:
    best = (SHORTEST - 1, -1)
    for at in range(len(tokens) - 1):
        shared = 0
        while shared < min(LONGEST, at + 1) and tokens[at - shared] == tokens[-1 - shared]:
            shared += 1
        if shared >= SHORTEST:
            best = max(best, (shared, at))
    if best[1] < 0:
        return ()
    out = list(tokens)
    for i in range(k):
        out.append(out[best[1] + 1 + i])
    return tuple(out[len(tokens) :])


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_it_is_the_plain_search(tokens, k):
    assert lookup(tokens, k) == brute(tokens, k)


def test_a_lookup_is_bounded():
    class Counted(list):
        reads = 0

        def __getitem__(self, at):
            Counted.reads += 1
            return super().__getitem__(at)

    tokens = Counted([7, *range(100, 100 + 3 * WINDOW), 7])
    tokens[1:3] = [8, 9]
    assert lookup(tokens, 4) == ()
    assert Counted.reads <= WINDOW + 2


def test_each_ask_has_its_own_answer():
    params, scope = SamplingParams(), Scope()
    asks = [
        Ask(i, tokens, k, params, 0, scope)
        for i, (tokens, k) in enumerate([([1, 2, 3, 1, 2], 2), ([4], 2), ([5, 5, 5], 1)])
    ]
    assert NgramProposer().propose(asks) == [(3, 1), (), (5,)]
