"""The transport benchmark: its arithmetic, and one short run of every subject."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pytest

from gateway.media.g711 import encode_ulaw
from loadtest.bench.__main__ import CLIPS
from loadtest.bench.transport.bench import SUBJECTS, Cost, Subject, measure, table
from loadtest.bench.transport.callers import RtcCaller, SocketCaller
from loadtest.bench.transport.sipp import SippCalls
from loadtest.bench.transport.talker import TalkingCall
from loadtest.bench.transport.voice import opus_packets, speech_24k
from voice_agent.audio import resample
from voice_agent.events import EndReason, Event, ReplyStarted
from voice_agent.player import Player
from voice_agent.types import OUT_FRAME, OUT_RATE

pytestmark = pytest.mark.unit


def test_ms_for_twenty_ms_are_a_share_of_a_core() -> None:
    cost = Cost("x", 8, 0.1, 0.3, delivered=1.0, heard=0.99, spoken=0.98, underruns=0.0)
    assert cost.percent == pytest.approx(2.0)  # 0.4 ms of 20
    assert cost.calls_per_core == pytest.approx(50)
    assert "| x | 8 | 0.100 | 0.300 | 2.00 | 50 | 100.0% | 99.0% | 98.0% | 0.0% |" in table([cost])


async def test_the_caller_without_models_never_stops_talking() -> None:
    speech = (np.arange(10 * OUT_FRAME) % 1000 + 1).astype(np.int16)
    events: list[Event] = []
    call = TalkingCall("a", events.append, speech)
    assert not call.tick().audible  # the clock may be there before the call
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    heard = np.concatenate([call.tick().pcm for _ in range(25)])
    assert np.array_equal(heard, np.tile(speech, 3)[: 25 * OUT_FRAME])
    assert call.underruns == 0
    assert any(isinstance(e, ReplyStarted) for e in events)
    call.play_on(Player())  # the line's own, which may come after the call has begun
    heard = np.concatenate([call.tick().pcm for _ in range(10)])
    assert np.array_equal(heard, np.roll(speech, -25 * OUT_FRAME % len(speech)))
    call.hang_up(EndReason.CALLER_HUNG_UP)
    assert await task is EndReason.CALLER_HUNG_UP


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
async def test_every_subject_carries_its_calls(subject: Subject) -> None:
    if subject.telephone and shutil.which("sipp") is None:
        pytest.skip("NOT RUN: needs sipp")
    speech = speech_24k(CLIPS)
    packets = opus_packets(speech)

    def make(url: str, sip: int) -> list[RtcCaller | SocketCaller | SippCalls]:
        if subject.telephone:
            return [SippCalls(sip, 1, encode_ulaw(resample(speech, OUT_RATE, 8000)))]
        return [SocketCaller(url, speech) if subject.websocket else RtcCaller(url, packets)]

    cost = await measure(subject, 1, 3.0, CLIPS, make)
    assert cost.core_ms > 0.0
    assert (cost.workers_ms > 0.0) == (subject.workers > 0 or subject.telephone)
    assert cost.delivered > 0.9
    assert cost.heard > 0.9
    assert cost.spoken > 0.9
