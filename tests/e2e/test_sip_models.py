"""A telephone call with the real models: sipp speaks, what comes back is listened to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.media import g711
from gateway.sip.settings import SipSettings
from tests.support import sipp as s
from tests.support.clips import clip, room, transcripts, word_error_rate
from tests.support.live_server import serving
from tests.support.sipp import NEEDS_SIPP, sipp
from tests.support.telephone import HOST, free_udp, until
from voice_agent.agent import Call
from voice_agent.audio import resample, to_float
from voice_agent.config import load_config
from voice_agent.events import EndReason, Event, ReplyDone, ReplyStatus, TurnCommitted
from voice_agent.loading import load_stack
from voice_agent.stack import Stack
from voice_agent.types import IN_RATE, Pcm16

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

FLAGS = {
    "models.llm": "smollm2-135m",
    "models.stt": "whisper-tiny.en",
    "models.voice": "piper-joe",
    "models.fetch": False,
}
AGENT = """
instructions = "You are a friendly phone agent. Answer in one short sentence."
greeting = "Thank you for calling the garden shop."
[limits]
max_reply_tokens = 24
"""
SAID = "ps_goforward"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    agents = tmp_path_factory.mktemp("agents")
    (agents / "default.toml").write_text(AGENT, "utf-8")
    loaded = await load_stack(load_config(None, {**FLAGS, "agents_dir": agents}).config)
    await loaded.start()
    yield loaded
    await loaded.close()


class Recorder(asyncio.DatagramProtocol):
    """What the server sends: mu-law in RTP, kept by sequence number."""

    def __init__(self) -> None:
        self.packets: dict[int, bytes] = {}

    def datagram_received(self, data: bytes, addr: object) -> None:
        if data[1] & 0x7F == int(s.PCMU):
            self.packets[int.from_bytes(data[2:4], "big")] = data[12:]

    def sound(self) -> Pcm16:
        """int16 [n] at 16 kHz; sequence numbers do not wrap in a short call unless they start
        near their end."""
        numbers = sorted(self.packets)
        if numbers[-1] - numbers[0] > 1 << 15:
            numbers = sorted(numbers, key=lambda n: (n + (1 << 15)) % (1 << 16))
        heard = g711.decode_ulaw(b"".join(self.packets[n] for n in numbers))
        return resample(heard, g711.RATE, IN_RATE)


@NEEDS_SIPP
async def test_the_caller_is_understood_and_answered_aloud(stack: Stack, tmp_path: Path) -> None:
    events: list[Event] = []

    def watched(*args: Any, **more: Any) -> Call:
        call = Call(*args, **more)
        call.listeners.append(events.append)
        return call

    port, rtp, ear = free_udp(2), free_udp(8), free_udp()
    stack.make_call = watched
    quiet = g711.encode_ulaw(resample(room(4.5), IN_RATE, g711.RATE))
    speech = g711.encode_ulaw(resample(clip(SAID), IN_RATE, g711.RATE))
    (tmp_path / "caller.ulaw").write_bytes(quiet + speech + 20 * quiet)
    recorder = Recorder()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: recorder, (HOST, ear))
    settings = SipSettings(port=port, rtp_ports=(rtp, rtp + 7))
    try:
        async with serving(stack, sip=settings, max_calls=1) as running:
            answer = [s.stream(tmp_path / "caller.ulaw"), s.asked("BYE", more=' timeout="45000"')]
            steps = [*s.answered(port=str(ear)), *answer, s.inside_response("200 OK")]
            calling = asyncio.create_task(sipp(tmp_path, "talk", steps, port))
            await until(lambda: _answered(events), "the answer to the caller")
            for live in list(running.gateway.live):
                assert live.call is not None
                live.call.hang_up(EndReason.AGENT_GOODBYE)
            run = await calling
            assert run.ok, run.log
    finally:
        stack.make_call = Call
        transport.close()
    (committed,) = [e.text for e in events if isinstance(e, TurnCommitted) and e.text]
    assert word_error_rate([transcripts()[SAID]], [committed]) <= 0.2
    replies = [e.text for e in events if isinstance(e, ReplyDone)]
    heard = await stack.recognizer.transcribe(to_float(recorder.sound()), final=True)
    assert word_error_rate([" ".join(replies)], [heard.text]) <= 0.3, (replies, heard.text)


def _answered(events: list[Event]) -> bool:
    """The reply to the caller's turn was heard to its end."""
    return any(
        isinstance(e, ReplyDone) and e.reply.turn and e.status is ReplyStatus.COMPLETED
        for e in events
    )
