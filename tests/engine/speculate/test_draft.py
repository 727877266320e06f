from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefix import Scope
from engine.sampling import SamplingParams
from engine.speculate.draft import CATCH_UP, DraftProposer
from engine.speculate.proposer import Ask
from tests.engine.fakes import HashRunner, expected
from tests.engine.test_loop import prompt_of

pytestmark = pytest.mark.unit


def ask(tokens: list[int], k: int = 4, reply: int = 1, call: str | None = None) -> Ask:
    return Ask(reply, tokens, k, SamplingParams(), 1, Scope("t", call))


def test_guesses_are_the_draft_models_own_text():
    draft = DraftProposer(HashRunner(32))
    tokens = prompt_of(11)
    for n in (5, 1, 2, 5, 3):  # so many tokens of what it guessed come true
        guess = draft.propose([ask(tokens)])[0]
        assert list(guess) == expected(tokens, 4)
        tokens += expected(tokens, n)
    draft.forget(1)
    draft.kv.check([])


def test_it_computes_what_it_has_not_seen_and_no_more():
    runner = HashRunner(32)
    draft = DraftProposer(runner)
    tokens = prompt_of(11)
    draft.propose([ask(tokens)])
    tokens += [*expected(tokens, 2), 5]  # two right, the third wrong
    runner.batches.clear()
    assert list(draft.propose([ask(tokens)])[0]) == expected(tokens, 4)
    assert [len(row.token_ids) for rows in runner.batches for row in rows] == [1, 1, 1, 1]
    assert runner.batches[0][0].start == len(tokens) - 1


def test_a_long_prompt_is_caught_up_with_in_bounded_pieces():
    runner = HashRunner(128)
    draft = DraftProposer(runner)
    long, short = prompt_of(3 * CATCH_UP + 5), prompt_of(9, salt=1)
    n = 0
    while not (guess := draft.propose([ask(long), ask(short, reply=2)]))[0]:
        n += 1
        assert n < 9
    assert list(guess[0]) == expected(long, 4)
    assert max(sum(len(row.token_ids) for row in rows) for rows in runner.batches) <= CATCH_UP
    assert list(draft.propose([ask(long), ask(short, reply=2)])[1]) == expected(short, 4)


def test_the_next_turn_goes_on_where_the_last_one_ended():
    runner = HashRunner(64)
    draft = DraftProposer(runner)
    tokens = prompt_of(30)
    draft.propose([ask(tokens, call="c")])
    tokens += expected(tokens, 2)
    draft.forget(1)
    runner.batches.clear()
    after = tokens + prompt_of(3, salt=5)
    assert list(draft.propose([ask(after, reply=2, call="c")])[0]) == expected(after, 4)
    assert len(runner.batches[0][0].token_ids) <= 4
    draft.forget(2)
    draft.forget_call("c")
    assert draft.kv.pool.n_free == 64


def test_without_room_there_are_no_guesses_and_nothing_is_kept():
    draft = DraftProposer(HashRunner(8))  # 32 tokens
    first, second = prompt_of(20), prompt_of(20, salt=1)
    guesses = draft.propose([ask(first), ask(second, reply=2)])
    assert [len(guess) for guess in guesses] == [4, 0]
    draft.forget(1)
    draft.forget(1)
    assert len(draft.propose([ask(second, reply=2)])[0]) == 4
    draft.forget(2)
    draft.kv.check([])
    assert draft.propose([ask(prompt_of(HashRunner(8).max_model_len - 3))]) == [()]
    draft.kv.check([])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([10, 16, 40]))
def test_any_course_of_replies_keeps_the_blocks_and_the_text(seed, n_blocks):
    picks = random.Random(seed)
    draft = DraftProposer(HashRunner(n_blocks))
    live: dict[int, list[int]] = {}
    for step in range(40):
        if len(live) < 3 and picks.random() < 0.5:
            live[step] = prompt_of(picks.randint(1, 24), salt=picks.randrange(3))
        asks = [ask(t, picks.randint(1, 5), i, "ab"[i % 2]) for i, t in live.items()]
        for one, guess in zip(asks, draft.propose(asks), strict=True):
            want = expected(one.tokens, one.k)
            assert list(guess) in ([], want)
            n = picks.randint(0, len(guess))
            live[one.reply] += [*guess[:n], picks.randint(1, 900)]
        for reply in list(live):
            if picks.random() < 0.15:
                del live[reply]
                draft.forget(reply)
        draft.kv.check([d.table for d in draft._drafts.values()])
    for reply in live:
        draft.forget(reply)
    draft.kv.prefix.clear()
    draft.kv.check([])
    assert draft.kv.pool.n_free == n_blocks
