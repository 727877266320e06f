"""The predicted echo: most of it is taken out, and a caller over it is told from it."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.media.echo_filter import NEAR_FRAMES, EchoFilter
from tests.support.clips import clip
from tests.support.echo import echo_of, telephone
from voice_agent.types import IN_FRAME, IN_RATE, Pcm16

pytestmark = pytest.mark.unit

OURS = np.concatenate([clip("ps_austen_0870"), clip("ps_austen_0920")])
GAP = np.zeros(IN_RATE * 6 // 10, np.int16)
WITH_GAPS = np.concatenate(
    [x for at in range(0, len(OURS), IN_RATE) for x in (OURS[at : at + IN_RATE], GAP)]
)
NOISE = 32768 * 10 ** (-50 / 20)  # of a busy room
LATE_MS = 40


def through(echo_filter: EchoFilter, line: Pcm16, ours: Pcm16 = OURS) -> tuple[Pcm16, list[bool]]:
    out, near = [], []
    for at in range(0, min(len(ours), len(line)) - IN_FRAME + 1, IN_FRAME):
        part = slice(at, at + IN_FRAME)
        out.append(echo_filter.push(ours[part], line[part]))
        near.append(echo_filter.near_end)
    return np.concatenate(out), near


def power(pcm: Pcm16) -> float:
    return float(np.square(pcm.astype(np.float64)).mean())


@pytest.mark.parametrize(("clipped", "left"), [(False, 0.01), (True, 0.3)])
def test_an_echo_is_learnt_and_predicted(clipped: bool, left: float) -> None:
    echo_filter = EchoFilter()
    line = telephone(echo_of(OURS, LATE_MS, 0, clipped=clipped))
    out, near = through(echo_filter, line)
    assert echo_filter.learnt
    settled = slice(6 * IN_RATE, len(out))
    assert power(out[settled]) < left * power(line[settled])
    assert not any(near[150:]), "our echo alone is nobody else"


@pytest.mark.parametrize("clipped", [False, True])
def test_a_caller_over_it_is_told_from_it_and_not_taken_out(clipped: bool) -> None:
    echo = echo_of(OURS, LATE_MS, -6, clipped=clipped)
    said = clip("ps_something")[: 2 * IN_RATE].astype(np.float64)
    caller = np.zeros(len(echo))
    caller[5 * IN_RATE : 5 * IN_RATE + len(said)] = said * np.sqrt(power(OURS) / power(said))
    echo_filter = EchoFilter()
    out, near = through(echo_filter, telephone(echo + caller))
    first, last = 5 * IN_RATE // IN_FRAME, (5 * IN_RATE + len(said)) // IN_FRAME
    assert sum(near[first:last]) > 0.6 * (last - first)
    assert not any(near[150:first])
    assert not any(near[last + 2 * NEAR_FRAMES :])
    part = slice(5 * IN_RATE, 5 * IN_RATE + len(said))
    like = np.corrcoef(out[part].astype(np.float64), caller[part])[0, 1]
    assert like > 0.8


def test_noise_between_our_words_is_nobody_and_a_caller_over_it_is() -> None:
    rng = np.random.default_rng(0)
    line = echo_of(WITH_GAPS, LATE_MS, -3, clipped=True) + rng.normal(0, NOISE, len(WITH_GAPS))
    _, near = through(EchoFilter(), telephone(line), WITH_GAPS)
    assert not any(near[150:])
    said = clip("ps_something")[: 2 * IN_RATE].astype(np.float64)
    line[8 * IN_RATE : 8 * IN_RATE + len(said)] += said * np.sqrt(power(OURS) / power(said))
    _, near = through(EchoFilter(), telephone(line), WITH_GAPS)
    first, last = 8 * IN_RATE // IN_FRAME, (8 * IN_RATE + len(said)) // IN_FRAME
    assert sum(near[first:last]) > 0.6 * (last - first)
    assert not any(near[150:first])


def test_noise_that_begins_later_is_nobody_soon() -> None:
    noise = np.random.default_rng(0).normal(0, NOISE, 12 * IN_RATE)
    noise[: 4 * IN_RATE] = 0.0
    _, near = through(EchoFilter(), noise.astype(np.int16), np.zeros(len(noise), np.int16))
    assert not any(near[:200])
    assert not any(near[400:])


def test_a_line_without_our_echo_is_left_as_it_is() -> None:
    caller = np.resize(clip("ps_austen_0890"), len(OURS))
    echo_filter = EchoFilter()
    out, near = through(echo_filter, caller)
    assert not echo_filter.learnt
    assert power(out) > 0.9 * power(caller[: len(out)])
    assert np.mean(near) > 0.8
