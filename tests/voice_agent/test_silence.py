"""The ladder of a silent call."""

from __future__ import annotations

import pytest

from voice_agent.silence import Due, Silence, SilenceLimits

pytestmark = pytest.mark.unit

LIMITS = SilenceLimits(idle_s=20.0, silence_s=100.0, max_call_s=300.0, prompts=2)


def climb(silence: Silence, start_s: int, end_s: int) -> list[tuple[int, Due]]:
    """What is due at each second in which something is."""
    looked = [(s, silence.due(float(s))) for s in range(start_s, end_s)]
    return [(s, due) for s, due in looked if due is not Due.NOTHING]


def test_prompt_prompt_goodbye() -> None:
    assert climb(Silence(LIMITS, 0.0), 0, 64)[:3] == [
        (21, Due.PROMPT), (42, Due.PROMPT), (63, Due.GOODBYE),
    ]  # fmt: skip


def test_words_start_the_ladder_over_and_noise_only_waits() -> None:
    silence = Silence(LIMITS, 0.0)
    assert climb(silence, 0, 30) == [(21, Due.PROMPT)]
    silence.active(30.0)
    assert climb(silence, 30, 60) == [(51, Due.PROMPT)]
    silence.words(60.0)
    assert silence.step == 0
    assert climb(silence, 60, 82) == [(81, Due.PROMPT)]


def test_noise_alone_does_not_keep_a_call_for_ever() -> None:
    silence = Silence(LIMITS, 0.0)
    for s in range(101):
        silence.active(float(s))
        assert silence.due(float(s)) is Due.NOTHING
    silence.active(101.0)
    assert silence.due(101.0) is Due.GOODBYE


def test_our_own_answer_is_no_silence_of_the_callers() -> None:
    silence = Silence(LIMITS, 0.0)
    silence.answered(90.0)
    silence.active(150.0)
    assert silence.due(150.0) is Due.NOTHING


def test_a_call_has_a_length() -> None:
    silence = Silence(LIMITS, 0.0)
    silence.words(300.0)
    assert silence.due(300.0) is Due.NOTHING
    assert silence.due(300.5) is Due.TIME_IS_UP


def test_without_prompts_the_goodbye_comes_first() -> None:
    silence = Silence(SilenceLimits(20.0, 100.0, 300.0, prompts=0), 0.0)
    assert climb(silence, 0, 22) == [(21, Due.GOODBYE)]
