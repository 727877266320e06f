"""Local agreement: confirmed words never change and only grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.stt.agreement import Agreement, same_length, split_at

pytestmark = pytest.mark.unit


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def test_one_pass_confirms_nothing() -> None:
    agreement = Agreement()
    agreement.update(words("he was not an old man"))
    assert agreement.n_confirmed == 0
    assert agreement.words == words("he was not an old man")


def test_two_passes_confirm_what_they_share_but_not_the_last_word() -> None:
    agreement = Agreement(loose=0, margin=99)
    agreement.update(words("He was not an"))
    agreement.update(words("he was, not in a hurry"))
    assert agreement.confirmed == words("he was, not")
    agreement.update(words("he was, not in a hurry"))
    assert agreement.confirmed == words("he was, not in a")


def test_a_stable_reading_confirms_more() -> None:
    agreement = Agreement(margin=3, loose=2)
    agreement.update(words("consider how much their might."))
    agreement.update(words("consider how much there might be prudently in his power"))
    assert agreement.confirmed == words("consider how much there might be prudently")


def test_an_unstable_reading_does_not() -> None:
    agreement = Agreement(margin=3, loose=2)
    agreement.update(words("a less to be rather cold"))
    agreement.update(words("unless to be rather cold hearted and selfish"))
    assert agreement.n_confirmed == 0


def test_a_pass_that_contradicts_confirmed_words_only_adds_news() -> None:
    agreement = Agreement()
    agreement.update(words("the person you are calling"))
    agreement.update(words("the person you are calling is not here"))
    confirmed = agreement.confirmed
    assert confirmed == words("the person you are calling")
    agreement.update(words("a person you are calling is not at home today"))
    assert agreement.confirmed[: len(confirmed)] == confirmed
    assert agreement.words == words("the person you are calling is not at home today")


@pytest.mark.parametrize(
    ("known", "heard", "expected"),
    [
        ("a b c d e", "a b c", (3, 3)),
        ("a b c", "a b c d e", (3, 3)),
        ("a b c", "x b c d", (3, 3)),
        ("", "a b", (0, 0)),
        ("a b", "", (0, 0)),
        ("the cat sat on the mat", "The cat sad on", (4, 4)),
    ],
)
def test_split(known: str, heard: str, expected: tuple[int, int]) -> None:
    assert split_at(words(known), words(heard)) == expected


PASSES = st.lists(
    st.lists(st.sampled_from(["a", "b", "A.", "c", "and", "-"]), max_size=12), max_size=12
)


@given(PASSES, st.integers(0, 5), st.integers(0, 3))
def test_confirmed_words_only_grow(passes: list[list[str]], margin: int, loose: int) -> None:
    agreement = Agreement(margin, loose)
    before: tuple[str, ...] = ()
    for heard in passes:
        agreement.update(heard)
        assert agreement.confirmed[: len(before)] == before
        assert 0 <= agreement.n_confirmed <= len(agreement.words)
        assert len(agreement.words) <= len(before) + len(heard)
        before = agreement.confirmed


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_split_stays_inside(known: list[str], heard: list[str]) -> None:
    k, j = split_at(known, heard)
    assert 0 <= k <= len(known)
    assert 0 <= j <= len(heard)
    assert k == len(known) or j == len(heard)
    assert same_length(known, known) == len(known)
