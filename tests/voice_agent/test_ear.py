"""One call's ear: media time, and an end of speech that does not wait for the detector's memory."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from voice_agent.clock import ManualClock
from voice_agent.ear import INBOX_FRAMES, Ear
from voice_agent.endpointing import Edge, EdgeKind, Endpointer, TurnTaking
from voice_agent.types import IN_FRAME, IN_RATE, Frame, Pcm16
from voice_agent.vad import VadService

pytestmark = pytest.mark.unit


class SlowVad:
    """Hears a voice for 128 ms after it has ended, as a recurrent detector does."""

    def __init__(self) -> None:
        self.left = 0

    def score(self, windows: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        loud = bool(np.abs(windows[0, 64:]).mean() > 0.05)
        self.left = 5 if loud else max(0, self.left - 1)
        return np.full(len(windows), 0.9 if self.left else 0.0, np.float32), states


async def edges_of(pcm: Pcm16, clock: ManualClock) -> list[Edge]:
    out: list[Edge] = []
    vad = VadService(clock, SlowVad())  # type: ignore[arg-type]
    ear = Ear(vad, Endpointer(TurnTaking()), clock, out.append, lambda window: None)
    task = asyncio.create_task(ear.run())
    for i in range(0, len(pcm) - IN_FRAME + 1, IN_FRAME):
        clock.advance(0.02)
        ear.hear(Frame(pcm[i : i + IN_FRAME]))
        await asyncio.sleep(0)
    while True:
        await asyncio.sleep(0)
        if ear.samples >= len(pcm) // IN_FRAME * IN_FRAME:
            break
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return out


def voice(seconds: float, level: int = 8000) -> Pcm16:
    rng = np.random.default_rng(1)
    return (rng.normal(0, level, int(IN_RATE * seconds))).clip(-32768, 32767).astype(np.int16)


async def test_the_end_is_where_the_voice_faded_not_where_the_detector_forgot_it() -> None:
    quiet = voice(1.5, 3)
    edges = await edges_of(np.concatenate([quiet, voice(1.0), quiet]), ManualClock())
    ended = next(e for e in edges if e.kind is EdgeKind.ENDED)
    assert abs(ended.sample / IN_RATE - 2.5) <= 0.064


async def test_in_noise_the_detector_alone_decides() -> None:
    noise = voice(1.5, 800)  # 20 dB below the voice
    edges = await edges_of(np.concatenate([noise, voice(1.0), noise]), ManualClock())
    ended = next(e for e in edges if e.kind is EdgeKind.ENDED)
    assert ended.sample / IN_RATE > 2.6


async def test_media_time_maps_to_the_clock_by_the_earliest_arrival() -> None:
    clock = ManualClock(100.0)
    vad = VadService(clock, SlowVad())  # type: ignore[arg-type]
    ear = Ear(vad, Endpointer(TurnTaking()), clock, lambda e: None, lambda w: None)
    for late in (0.0, 0.03, 0.0, 0.05):  # jitter makes frames late, never early
        clock.advance(0.02 + late)
        ear.hear(Frame(np.zeros(IN_FRAME, np.int16)))
    assert ear.clock_at(IN_RATE) == pytest.approx(101.0)


async def test_a_flood_drops_the_oldest_and_counts() -> None:
    clock = ManualClock()
    vad = VadService(clock, SlowVad())  # type: ignore[arg-type]
    ear = Ear(vad, Endpointer(TurnTaking()), clock, lambda e: None, lambda w: None)
    for _ in range(INBOX_FRAMES + 7):
        ear.hear(Frame(np.zeros(IN_FRAME, np.int16)))
    assert ear.dropped_frames == 7
    with pytest.raises(ValueError, match="a frame is int16"):
        ear.hear(Frame(np.zeros(10, np.int16)))


async def test_a_voice_is_as_loud_as_the_callers_turns_or_quieter() -> None:
    clock, vad = ManualClock(), SlowVad()
    ear = Ear(
        VadService(clock, vad), Endpointer(TurnTaking()), clock, lambda edge: None,  # type: ignore[arg-type]
        lambda window: None,
    )  # fmt: skip

    async def speak(level: int) -> float:
        sound = np.concatenate([voice(0.6, level), np.zeros(int(IN_RATE * 2.4), np.int16)])
        for i in range(0, len(sound) - IN_FRAME + 1, IN_FRAME):
            clock.advance(0.02)
            await ear.process(Frame(sound[i : i + IN_FRAME]))
        return ear.below_db

    assert await speak(8000) == 0.0, "as loud as callers are"
    assert not ear.knows_voice
    ear.learn_voice(0)
    assert ear.knows_voice
    assert await speak(4000) == pytest.approx(6.0, abs=1.0)
    assert await speak(2500) == pytest.approx(10.0, abs=1.0)
    assert await speak(8000) == pytest.approx(0.0, abs=1.0)
    await speak(2500)
    ear.learn_voice(0)
    assert await speak(2500) == pytest.approx(8.0, abs=1.0), "a quiet turn counts a fifth"


async def test_a_voice_that_sinks_is_waited_for_less_than_one_that_is_kept_up() -> None:
    waits = []
    for last in (8000, 2500):
        clock, quiet = ManualClock(), voice(1.5, 3)
        edges = await edges_of(np.concatenate([voice(1.0), voice(0.2, last), quiet]), clock)
        ended = next(e for e in edges if e.kind is EdgeKind.ENDED)
        waits.append((ended.at_sample - ended.sample) * 1000 / IN_RATE)
    kept_up, sunk = waits
    assert kept_up > 2 * sunk
