"""Whether a line holds our own voice: found with its delay and level, and never where it is not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gateway.media.echo_probe import EchoProbe
from tests.support.clips import clip
from tests.support.echo import echo_of, telephone
from voice_agent.own_words import Echo
from voice_agent.types import IN_FRAME, IN_RATE, Pcm16

pytestmark = pytest.mark.unit

OURS = np.concatenate([clip("ps_austen_0870"), clip("ps_austen_0920")])
CALLERS = ("ps_something", "ps_goforward", "ps_austen_0890", "ps_cards_005", "ms_beckett")


def hum(seconds: float) -> Pcm16:
    t = np.arange(int(IN_RATE * seconds)) / IN_RATE
    return sum(800 * np.sin(2 * np.pi * 50 * k * t) / k for k in range(1, 20)).astype(np.int16)


def fed(sent: Pcm16, heard: np.ndarray) -> EchoProbe:
    probe = EchoProbe()
    for at in range(0, min(len(sent), len(heard)) - IN_FRAME + 1, IN_FRAME):
        probe.push(sent[at : at + IN_FRAME], heard[at : at + IN_FRAME].astype(np.int16))
    return probe


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(
    ("delay_ms", "db"), [*itertools.product((60, 130, 200), (0, -6, -12)), (600, -6)]
)
def test_an_echo_is_found_with_its_delay_and_level(delay_ms, db, clipped):
    probe = fed(OURS, telephone(echo_of(OURS, delay_ms, db, clipped=clipped)))
    assert probe.verdict is Echo.FOUND
    assert probe.path is not None
    assert probe.path.delay_ms == pytest.approx(delay_ms, abs=15)  # the room's own answer included
    assert probe.path.level_db == pytest.approx(db, abs=6)
    assert probe.speech_frames * 20 <= 3000


def test_an_echo_is_found_under_a_caller_who_talks():
    caller = np.resize(clip("ps_austen_0890"), len(OURS))
    probe = fed(OURS, telephone(echo_of(OURS, 130, -6) + caller))
    assert probe.verdict is Echo.FOUND
    assert probe.path is not None
    assert probe.path.delay_ms == pytest.approx(130, abs=15)


@pytest.mark.parametrize("shift", [0, 5000, 11000])
@pytest.mark.parametrize("name", CALLERS)
def test_another_voice_is_no_echo(name, shift):
    caller = np.roll(np.resize(clip(name), len(OURS)), shift)
    assert fed(OURS, telephone(caller)).verdict is Echo.NONE


@pytest.mark.parametrize("noise", ["hum", "hiss", "nothing"])
def test_noise_is_no_echo(noise):
    seconds = len(OURS) / IN_RATE
    heard = {
        "hum": hum(seconds),
        "hiss": np.random.default_rng(0).normal(0, 300, len(OURS)).astype(np.int16),
        "nothing": np.zeros(len(OURS), np.int16),
    }[noise]
    assert fed(OURS, heard).verdict is Echo.NONE


def test_silence_of_ours_decides_nothing():
    probe = fed(np.zeros(IN_RATE * 10, np.int16), np.resize(OURS, IN_RATE * 10))
    assert probe.verdict is Echo.UNKNOWN
    assert probe.speech_frames == 0


def test_a_loudspeaker_switched_on_later_is_found_then():
    quiet = np.concatenate([np.zeros(len(OURS)), echo_of(OURS, 130, -6)])
    probe = EchoProbe()
    verdicts = []
    twice = np.concatenate([OURS, OURS])
    for at in range(0, len(twice) - IN_FRAME + 1, IN_FRAME):
        probe.push(twice[at : at + IN_FRAME], quiet[at : at + IN_FRAME].astype(np.int16))
        verdicts.append(probe.verdict)
    assert list(dict.fromkeys(verdicts)) == [Echo.UNKNOWN, Echo.NONE, Echo.FOUND]
