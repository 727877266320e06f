"""Scenarios and who calls when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtest.plan import Words, arrivals, plan, sizes
from loadtest.scenario import load_scenario, names
from loadtest.words import WORDS, instructions, reply_text, words_in
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", names())
def test_every_scenario_that_comes_along_can_be_planned(name: str) -> None:
    scenario = load_scenario(name)
    for calls in (1, 2, 8):
        planned = plan(scenario, calls, 60.0, 1, scripted=True)
        shared = [c for c in planned if c.group.share is not None]
        at_once = [c for c in shared if c.start_s <= 15 < c.end_s]
        assert len(at_once) <= calls
        assert {c.group.name for c in planned if c.group.measured}
        assert all(0 <= c.start_s < c.end_s <= 60 for c in planned)


def test_the_named_ones_are_there() -> None:
    assert set(names()) >= {
        "chatty", "long-answers", "barge-in", "intruder", "cold-tenants", "flood", "noise-only",
        "slow-network",
    }  # fmt: skip


def test_same_seed_same_calls_another_seed_other_ones() -> None:
    scenario = load_scenario("cold-tenants")
    a, b, c = (plan(scenario, 4, 60.0, seed, scripted=True) for seed in (1, 1, 2))
    assert a == b
    assert a != c


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- 1", "mapping"),
        ("description: x", "callers"),
        ("description: x\ncallers: [{name: a, share: 0.5}]", "add up to 1"),
        ("description: x\ncallers: [{name: a, share: 1, count: 2}]", "either share"),
        ("description: x\ncallers: [{name: a, share: 1, shape: round}]", "shape"),
        ("description: [", "cannot be read"),
        ("description: x\ncallers: [{name: a, share: 0.5}, {name: a, share: 0.5}]", "same name"),
    ],
)
def test_a_scenario_of_one_s_own_that_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says) as error:
        load_scenario(str(path))
    assert error.value.code == "VA530"


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="chatty, cold-tenants"):
        load_scenario("chattty")


def test_arrivals_by_pattern() -> None:
    rng = np.random.default_rng(1)
    assert arrivals("burst", 3, 60.0, rng) == [0.0] * 3
    assert arrivals("ramp", 3, 60.0, rng) == [0.0, 15.0, 30.0]
    steady = arrivals("steady", 8, 60.0, rng)
    assert steady == sorted(steady)
    assert steady[0] >= 0
    assert steady[-1] < 15


@pytest.mark.parametrize(("calls", "expected"), [(1, [1, 0]), (2, [1, 1]), (5, [3, 2])])
def test_shares_are_whole_callers(calls: int, expected: list[int]) -> None:
    assert sizes(load_scenario("noise-only"), calls) == expected


def test_no_two_live_calls_have_one_word() -> None:
    planned = plan(load_scenario("cold-tenants"), 8, 60.0, 1, scripted=True)
    assert len(planned) > 16
    for a in planned:
        for b in planned:
            if a.index < b.index and b.start_s < a.end_s:
                assert a.word != b.word


def test_more_calls_than_words_are_refused_for_scripts_only() -> None:
    scenario = load_scenario("chatty")
    with pytest.raises(UsageError, match="--answers model"):
        plan(scenario, len(WORDS) + 1, 60.0, 1, scripted=True)
    assert len(plan(scenario, len(WORDS) + 1, 60.0, 1, scripted=False)) == len(WORDS) + 1


def test_a_word_rests_before_it_is_given_again() -> None:
    words = Words()
    first = words.give(0.0, 10.0)
    given = [words.give(1.0, 10.0) for _ in range(len(WORDS) - 1)]
    assert len({first, *given}) == len(WORDS)
    with pytest.raises(UsageError):
        words.give(11.0, 20.0)
    assert words.give(31.0, 40.0) in WORDS


def test_the_scripted_answer_has_the_prompt_s_word_and_length() -> None:
    for sentences in (1, 5):
        text = reply_text(instructions("piano", sentences), turn=3)
        assert words_in(text) == {"piano"}
        assert text.count(".") == sentences
    assert not words_in(reply_text(instructions(None, 1), turn=3))


def test_longer_prompts_begin_unlike_and_are_as_long_as_asked() -> None:
    a, b = (instructions("piano", 1, 2000, salt) for salt in (1, 2))
    assert a.split()[:2] != b.split()[:2]
    assert 2000 <= len(a.split()) <= 2030
    assert words_in(reply_text(a, 0)) == {"piano"}
