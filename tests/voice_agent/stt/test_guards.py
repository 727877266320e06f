"""Loops and made-up words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clips import transcripts
from voice_agent.stt.guards import (
    is_loop,
    is_made_up,
    is_quiet,
    is_suspicious,
    plain,
    plain_text,
    trim_repeats,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "capped", "expected"),
    [
        ("he said no no no", False, "he said no no no"),
        ("old s y y y y", False, "old s y"),
        ("old s y y y", True, "old s y"),
        ("try again. try again.", False, "try again. try again."),
        ("go on try again. Try again. try again", False, "go on try again."),
        ("the person you are The person you are the person", True, "the person you are"),
        ("", True, ""),
        ("one", True, "one"),
    ],
)
def test_loops_are_cut_after_their_first_round(text: str, capped: bool, expected: str) -> None:
    assert " ".join(trim_repeats(text.split(), capped=capped)) == expected


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=40), st.booleans())
def test_trimming_only_removes_from_the_end(words: list[str], capped: bool) -> None:
    kept = trim_repeats(words, capped=capped)
    assert list(kept) == words[: len(kept)]
    assert bool(kept) == bool(words)


def test_words_compare_without_case_and_punctuation() -> None:
    assert plain("Dashwood's,") == "dashwood's"
    assert plain("ÉTÉ!") == "été"
    assert plain("—") == ""
    assert plain_text(["Thank", "you.", "—"]) == "thank you"


def test_quiet_is_no_frame_above_the_floor() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(16_000).astype(np.float32)
    assert is_quiet(np.zeros(0, np.float32))
    assert is_quiet(np.zeros(16_000, np.float32))
    assert is_quiet(noise * 0.0005)
    assert not is_quiet(noise * 0.05)
    short = np.zeros(16_000, np.float32)
    short[8_000:8_800] = 0.1
    assert not is_quiet(short)


def test_thanks_over_silence_is_suspicious_and_made_up_without_voice() -> None:
    assert is_suspicious(["Thank", "you."], 0.1, -0.2)
    assert not is_suspicious(["Call", "a", "taxi."], 0.1, -0.2)
    assert is_suspicious(["Call", "a", "taxi."], 0.7, -0.2)
    assert is_made_up(0.1, -0.2, voiced_s=0.0)
    assert not is_made_up(0.1, -0.2, voiced_s=0.6)
    assert is_made_up(0.95, -2.0, voiced_s=0.6)


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("I am not a blacker, " * 6, True),
        ("no no no", False),
        ("I would like to book a table for two people on Monday evening at half past seven", False),
        ("five five five one two three four five five five one two three four", False),
        ("No, I said Tuesday, Tuesday, not Monday, please change it to Tuesday for me", False),
    ],
)
def test_a_loop_over_several_passes_is_told_from_people(text: str, loop: bool) -> None:
    assert is_loop(text.split()) is loop


def test_what_people_say_is_no_loop() -> None:
    assert not [text for text in transcripts().values() if is_loop(text.split())]
