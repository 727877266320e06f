"""Voice activity: the model, batching, and streams that never touch each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice_agent.audio import read_wav, to_float
from voice_agent.clock import ManualClock
from voice_agent.errors import CapacityError
from voice_agent.types import IN_FRAME, Frame, FrameFlag, Pcm16
from voice_agent.vad import (
    BATCH_FROM,
    MAX_STREAMS,
    WINDOW,
    SileroVad,
    VadService,
    VadStream,
    Windower,
)

pytestmark = pytest.mark.unit

CLIPS = Path(__file__).parents[1] / "data" / "clips"


@pytest.fixture(scope="module")
def model() -> SileroVad:
    return SileroVad()


@pytest.fixture(scope="module")
def speech() -> Pcm16:
    return read_wav(CLIPS / "ps_austen_0880.wav").pcm


def frames(pcm: Pcm16) -> list[Frame]:
    return [Frame(pcm[i : i + IN_FRAME]) for i in range(0, len(pcm) - IN_FRAME + 1, IN_FRAME)]


async def hear(stream: VadStream, pcm: Pcm16) -> list[float]:
    return [w.prob for f in frames(pcm) for w in await stream.push(f)]


async def test_speech_is_voice_and_silence_is_not(model: SileroVad, speech: Pcm16) -> None:
    vad = VadService(ManualClock(), model)
    stream = vad.open()
    probs = await hear(stream, np.concatenate([np.zeros(16_000, np.int16), speech]))
    assert max(probs[:30]) < 0.2
    assert np.mean(np.array(probs[40:110]) > 0.5) > 0.8
    vad.close()


async def test_positions_follow_the_samples(model: SileroVad, speech: Pcm16) -> None:
    vad = VadService(ManualClock(), model)
    stream = vad.open()
    windows = [w for f in frames(speech) for w in await stream.push(f)]
    assert [w.start_sample for w in windows] == [i * WINDOW for i in range(len(windows))]
    assert all(w.end_sample == w.start_sample + WINDOW for w in windows)
    assert len(windows) == len(frames(speech)) * IN_FRAME // WINDOW
    assert vad.windows == len(windows)


async def test_streaming_equals_the_whole_recording(model: SileroVad, speech: Pcm16) -> None:
    vad = VadService(ManualClock(), model)
    probs = await hear(vad.open(), speech)
    whole = model.probabilities(to_float(speech))[: len(probs)]
    assert np.allclose(probs, whole, atol=1e-5)


async def test_batched_streams_hear_only_themselves(model: SileroVad, speech: Pcm16) -> None:
    alone = VadService(ManualClock(), model)
    expected = await hear(alone.open(), speech[:16_000])
    vad = VadService(ManualClock(), model)
    rng = np.random.default_rng(0)
    streams = [vad.open() for _ in range(BATCH_FROM + 2)]
    noise = [rng.integers(-9000, 9000, 16_000).astype(np.int16) for _ in streams[1:]]
    heard = await asyncio.gather(
        hear(streams[0], speech[:16_000]),
        *(hear(s, n) for s, n in zip(streams[1:], noise, strict=True)),
    )
    assert np.allclose(heard[0], expected, atol=1e-4)
    assert vad.calls < vad.windows / 4  # they ran together
    vad.close()


async def test_a_cancelled_push_leaves_the_others_alone(model: SileroVad, speech: Pcm16) -> None:
    vad = VadService(ManualClock(), model)
    streams = [vad.open() for _ in range(BATCH_FROM)]
    pcm = speech[:WINDOW]
    tasks = [asyncio.ensure_future(s.push(Frame(pcm))) for s in streams]
    await asyncio.sleep(0)
    tasks[0].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert all(len(w) == 1 for w in done[1:])  # type: ignore[arg-type]
    assert len(await streams[0].push(Frame(speech[WINDOW : 2 * WINDOW]))) == 1
    vad.close()


async def test_concealed_windows_are_not_scored(model: SileroVad, speech: Pcm16) -> None:
    vad = VadService(ManualClock(), model)
    stream = vad.open()
    await hear(stream, speech[:16_000])
    before = stream.state.copy()
    at = vad.windows
    windows = []
    for frame in frames(speech[16_000:19_200]):
        windows += await stream.push(Frame(frame.pcm, FrameFlag.CONCEALED))
    assert windows
    assert all(w.concealed and w.prob == 0.0 for w in windows[1:])
    assert vad.windows - at <= 1  # at most the window that was half heard
    if vad.windows == at:
        assert np.array_equal(stream.state, before)


async def test_bounds_and_closing(model: SileroVad) -> None:
    vad = VadService(ManualClock(), model)
    streams = [vad.open() for _ in range(MAX_STREAMS)]
    with pytest.raises(CapacityError):
        vad.open()
    streams[0].close()
    streams[0].close()
    assert vad.n_open == MAX_STREAMS - 1
    assert await streams[0].push(Frame(np.zeros(IN_FRAME, np.int16))) == []
    vad.close()
    assert vad.n_open == 0


async def test_one_task_at_a_time(model: SileroVad) -> None:
    vad = VadService(ManualClock(), model)
    streams = [vad.open() for _ in range(BATCH_FROM)]
    first = asyncio.ensure_future(streams[0].push(Frame(np.zeros(WINDOW, np.int16))))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="in order"):
        await streams[0].push(Frame(np.zeros(WINDOW, np.int16)))
    await first
    vad.close()


@settings(max_examples=50)
@given(st.lists(st.integers(0, 1500), max_size=20))
def test_windows_are_the_same_in_any_chunking(sizes: list[int]) -> None:
    total = sum(sizes)
    pcm = (np.arange(total) % 30_000).astype(np.int16)
    windower, out, at = Windower(), [], 0
    for size in sizes:
        out += windower.push(Frame(pcm[at : at + size]))
        at += size
    assert [start for start, _, _ in out] == [i * WINDOW for i in range(total // WINDOW)]
    joined = np.concatenate([w for _, w, _ in out]) if out else np.zeros(0, np.float32)
    assert np.array_equal(joined, to_float(pcm[: len(joined)]))
