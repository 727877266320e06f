"""What speech over ours was: words, too little of them, an acknowledgement, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.barge_in import BargeIn, Evidence, judge
from voice_agent.turn_records import Speech

pytestmark = pytest.mark.unit

SPEAKING = Evidence("", complete=False, over_us=True, sounded=True, voice_ms=400)
NOTHING, MM_HM, UNSURE, WORDS = (
    Speech.NOTHING, Speech.BACKCHANNEL, Speech.UNSURE, Speech.WORDS,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "speaking", "thinking", "at_pause"),
    [
        ("", NOTHING, NOTHING, NOTHING),
        ("Mm-hm.", MM_HM, MM_HM, MM_HM),
        ("Yeah.", MM_HM, WORDS, MM_HM),
        ("Oh, I see, right.", MM_HM, WORDS, MM_HM),
        ("Stop", WORDS, WORDS, WORDS),
        ("okay wait", WORDS, WORDS, WORDS),
        ("Tuesday", UNSURE, WORDS, WORDS),
        ("no Tuesday", WORDS, WORDS, WORDS),
    ],
)
def test_verdicts(text: str, speaking: Speech, thinking: Speech, at_pause: Speech) -> None:
    evidence = replace(SPEAKING, text=text)
    assert judge(evidence, BargeIn()).speech is speaking
    assert judge(replace(evidence, sounded=False), BargeIn()).speech is thinking
    assert judge(replace(evidence, complete=True), BargeIn()).speech is at_pause


@given(st.text("abc yeah stop mm-hm.", max_size=40), st.booleans(), st.booleans(), st.booleans())
def test_a_complete_transcript_is_always_decided(
    text: str, complete: bool, over_us: bool, sounded: bool
) -> None:
    judgement = judge(Evidence(text, complete, over_us, sounded, 500), BargeIn())
    assert not (complete and judgement.speech is UNSURE)
    assert over_us or judgement.speech is not UNSURE
    assert (judgement.speech is NOTHING) == (not any(c.isalnum() or c in "-'" for c in text))
    for word in text.split():
        assert f" {word} " not in f" {judgement.why} " or word.isdigit()


def test_more_words_may_be_asked_for_from_our_voice_than_from_our_thoughts() -> None:
    settings = BargeIn(speaking_words=4, thinking_words=2)
    evidence = replace(SPEAKING, text="is it far")
    assert judge(evidence, settings).speech is UNSURE
    assert judge(replace(evidence, sounded=False), settings).speech is WORDS
    assert judge(replace(evidence, text="far", sounded=False), settings).speech is UNSURE


@pytest.mark.parametrize("complete", [True, False])
def test_a_voice_far_quieter_than_the_callers_stops_us_with_a_stop_word_only(
    complete: bool,
) -> None:
    far = replace(SPEAKING, text="tell her I am coming", complete=complete, below_db=12.5)
    assert judge(far, BargeIn()).speech is MM_HM
    assert "quieter_db:12" in judge(far, BargeIn()).why
    assert judge(replace(far, text="stop"), BargeIn()).speech is WORDS
    assert judge(replace(far, below_db=11.5), BargeIn()).speech is WORDS
    assert judge(far, BargeIn(quieter_db=0.0)).speech is WORDS
    assert judge(replace(far, sounded=False), BargeIn()).speech is WORDS


def test_a_voice_far_duller_than_the_callers_stops_us_with_a_stop_word_only() -> None:
    aside = replace(SPEAKING, text="tell her I am coming", complete=True, duller_db=8.5)
    assert judge(aside, BargeIn()).speech is MM_HM
    assert judge(replace(aside, text="stop"), BargeIn()).speech is WORDS
    assert judge(replace(aside, duller_db=7.5), BargeIn()).speech is WORDS
    assert judge(aside, BargeIn(quieter_db=0.0)).speech is WORDS


@pytest.mark.parametrize(
    "kwargs",
    [
        {"duck_db": -1.0},
        {"hold_ms": -1},
        {"decide_ms": 100},
        {"speaking_words": 0},
        {"greeting_guard_ms": -1},
        {"quieter_db": -1.0},
    ],
)
def test_settings_that_cannot_be_are_refused(kwargs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        BargeIn(**kwargs)  # type: ignore[arg-type]


def test_a_lowered_voice_is_quieter_by_the_decibels_given() -> None:
    assert BargeIn(duck_db=20.0).duck_gain == pytest.approx(0.1)


def test_a_short_burst_is_believed_if_it_was_clear() -> None:
    """By a recogniser that makes words of "mm-hm" and is unsure of them."""
    burst = replace(SPEAKING, text="It's a moment.", voice_ms=500, logprob=-0.9)
    assert judge(burst, BargeIn()).speech is UNSURE
    assert judge(replace(burst, complete=True), BargeIn()).speech is MM_HM
    assert judge(replace(burst, complete=True, logprob=-0.3), BargeIn()).speech is WORDS
    assert judge(replace(burst, voice_ms=1200), BargeIn()).speech is WORDS
    assert judge(replace(burst, text="Stop it."), BargeIn()).speech is WORDS
    assert judge(replace(burst, complete=True, sounded=False), BargeIn()).speech is WORDS


def test_an_acknowledgement_is_not_heard_as_words_a_moment_later() -> None:
    again = replace(SPEAKING, text="I see it.", complete=True, acknowledged=2)
    assert judge(again, BargeIn()).speech is MM_HM
    assert judge(replace(again, text="I see but when"), BargeIn()).speech is WORDS
    assert judge(replace(again, text="Wait."), BargeIn()).speech is WORDS


@pytest.mark.parametrize("text", ["At 7.", "at seven", "Tuesday.", "next week", "What?"])
def test_a_number_a_day_or_a_question_is_no_unclear_burst(text: str) -> None:
    burst = replace(SPEAKING, text=text, voice_ms=500, logprob=-1.1, complete=True)
    assert judge(burst, BargeIn()).speech is WORDS
    assert judge(replace(burst, text="Atta."), BargeIn()).speech is MM_HM


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("low, I see", True),
        ("Hello, okay.", True),
        ("that is right", False),
        ("not good", False),
        ("No, okay?", False),
        ("book me on Tuesday, okay", False),
    ],
)
def test_a_few_words_that_end_as_an_acknowledgement_are_one(text: str, is_one: bool) -> None:
    said = replace(SPEAKING, text=text, voice_ms=1000)
    assert judge(said, BargeIn()).speech is (UNSURE if is_one else WORDS)
    assert judge(replace(said, complete=True), BargeIn()).speech is (MM_HM if is_one else WORDS)
    assert judge(replace(said, voice_ms=1300), BargeIn()).speech is WORDS


def test_a_guessed_stop_word_waits_for_the_pause() -> None:
    guess = replace(SPEAKING, text="Enough", logprob=-3.2)
    assert judge(guess, BargeIn()).speech is UNSURE
    assert judge(replace(guess, complete=True), BargeIn()).speech is WORDS
    assert judge(replace(guess, logprob=-1.5), BargeIn()).speech is WORDS


def test_only_an_acknowledgement_in_words_is_one_a_moment_later() -> None:
    """Else half a word, taken for "mm-hm", would take the words after it with it."""
    unclear = replace(SPEAKING, text="Fie", logprob=-1.3, complete=True)
    assert judge(unclear, BargeIn()).speech is MM_HM
    assert not judge(unclear, BargeIn()).acknowledges
    assert judge(replace(unclear, text="Right."), BargeIn()).acknowledges
