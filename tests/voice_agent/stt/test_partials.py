"""When a partial pass is worth it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.stt.partials import BARGE_IN_PASSES, PartialConfig, PartialPolicy, Why

pytestmark = pytest.mark.unit

W = 512


def speak(
    policy: PartialPolicy,
    seconds: float,
    start: int = 0,
    *,
    agent: bool = False,
    voiced: bool = True,
) -> list[tuple[Why, float]]:
    out = []
    for at in range(start, start + int(seconds * 16_000), W):
        why = policy.due(at, at + W, voiced=voiced, agent_speaking=agent)
        if why is not None:
            out.append((why, (at + W) / 16_000))
    return out


def test_a_pass_for_every_interval_of_new_voice() -> None:
    policy = PartialPolicy()
    policy.begin(0)
    passes = speak(policy, 5.9)
    assert [why for why, _ in passes] == [Why.INTERVAL] * 3
    assert [at for _, at in passes] == pytest.approx([1.5, 3.0, 4.5], abs=0.1)


def test_six_seconds_cost_three_timed_passes_and_a_short_answer_none() -> None:
    policy = PartialPolicy()
    policy.begin(0)
    assert speak(policy, 1.4) == []
    assert policy.pause(22_000, 24_000) is Why.PAUSE
    assert policy.n_partials == 1


def test_silence_is_not_new_voice() -> None:
    policy = PartialPolicy()
    policy.begin(0)
    assert speak(policy, 30.0, voiced=False) == []


def test_while_the_agent_speaks_passes_come_early_and_then_ever_less_often() -> None:
    policy = PartialPolicy()
    policy.begin(3 * 16_000)
    passes = speak(policy, 5.0, 3 * 16_000, agent=True)
    assert {why for why, _ in passes} == {Why.BARGE_IN}
    after = [at - 3.0 for _, at in passes]
    assert after == pytest.approx([0.35, 0.7, 1.05, 1.75, 3.15], abs=0.04)


def test_a_pause_that_was_already_heard_needs_no_pass() -> None:
    policy = PartialPolicy()
    policy.begin(0)
    assert policy.pause(16_000, 18_000) is Why.PAUSE
    assert policy.pause(16_000, 20_000) is None
    assert policy.pause(30_000, 32_000) is Why.PAUSE


def test_load_stretches_timed_passes_but_never_the_barge_in_one() -> None:
    policy = PartialPolicy()
    policy.stretch = 2.0
    policy.begin(0)
    assert [at for _, at in speak(policy, 6.0)] == pytest.approx([3.0, 6.0], abs=0.1)
    policy.begin(0)
    assert speak(policy, 1.0, agent=True)[0][1] == pytest.approx(0.35, abs=0.04)


def test_settings_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        PartialConfig(interval_s=0)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 60)), max_size=20))
def test_never_more_than_one_pass_per_interval(runs: list[tuple[bool, bool, int]]) -> None:
    policy = PartialPolicy()
    policy.begin(0)
    at, voiced_samples, passes, early = 0, 0, 0, 0
    for voiced, agent, n in runs:
        for _ in range(n):
            why = policy.due(at, at + W, voiced=voiced, agent_speaking=agent)
            at += W
            voiced_samples += W * voiced
            passes += why is Why.INTERVAL
            early += why is Why.BARGE_IN
    assert early <= BARGE_IN_PASSES + math.log2(1 + at / (0.7 * 16_000))
    assert passes <= voiced_samples / (1.5 * 16_000)
