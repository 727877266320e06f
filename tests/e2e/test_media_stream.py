"""A telephone call over a media stream: recorded human speech in mu-law to the real server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import websockets

from tests.support.clips import clip, plain, room
from tests.support.media_stream import Platform, stop
from tests.support.real_server import RealServer
from voice_agent.audio import resample, to_float
from voice_agent.clock import MonotonicClock
from voice_agent.models import ModelStore
from voice_agent.stt.whisper import WhisperRecognizer

pytestmark = pytest.mark.e2e

GIVE_UP_S = 120.0
SETTLED = 25  # 20 ms without sound
OVER = 75  # longer than our voice is held for a verdict
TRIES = 4


async def test_a_greeting_an_answer_and_a_barge_in(real_server: RealServer) -> None:
    async with websockets.connect(f"{real_server.ws}/twilio") as socket:
        platform = Platform(socket)
        await platform.begin()
        async with asyncio.TaskGroup() as group:
            listen = group.create_task(platform.listen())
            clock = group.create_task(platform.clock())
            await platform.until(lambda: platform.played and platform.idle > SETTLED, GIVE_UP_S)
            greeting = np.concatenate(platform.played)
            n_greeting = len(platform.played)
            platform.say(resample(clip("ps_something"), 16_000, 8_000))
            await _interrupt(platform, n_greeting)
            n_cut = len(platform.played)
            await platform.until(lambda: len(platform.played) > n_cut + 20, GIVE_UP_S)
            await platform.send(stop())
            await listen
            clock.cancel()
    assert socket.close_reason == "caller_hung_up"
    assert "hello" in plain(await _transcribe(greeting)), "the caller was greeted"
    assert platform.thrown_away <= 8000 * 0.4, "no more lies with the platform than we sent ahead"
    clear = next(i for i, event in enumerate(platform.events) if event["event"] == "clear")
    late = [e["event"] for e in platform.events[clear + 1 :]]
    assert "media" in late, "the interruption was answered"
    log = real_server.log.read_text()
    assert "call ended" in log
    assert "go forward" not in log.lower(), "no word of a call in the log"


async def _interrupt(platform: Platform, n_heard: int) -> None:
    """Speak over an answer until one is cut: on a busy machine a short one may end by itself
    before the recogniser has answered."""
    for _ in range(TRIES):
        under_way = n_heard + 10
        await platform.until(lambda n=under_way: len(platform.played) > n, GIVE_UP_S)
        platform.say(resample(clip("ps_goforward"), 16_000, 8_000))
        await platform.until(lambda: platform.clears or platform.idle > OVER, GIVE_UP_S)
        if platform.clears:
            break
        n_heard = len(platform.played)
    assert platform.clears == 1, "the platform was told to throw our sound away"


async def _transcribe(sound: np.ndarray) -> str:
    recognizer = WhisperRecognizer(ModelStore().path("whisper-tiny.en"), clock=MonotonicClock())
    try:
        padded = np.concatenate([room(0.3), resample(sound, 8_000, 16_000), room(0.5)])
        return (await recognizer.transcribe(to_float(padded), final=True)).text
    finally:
        recognizer.close()
