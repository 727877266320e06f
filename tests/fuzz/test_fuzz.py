"""Damaged messages to every parser: no crash, nothing kept, nobody else disturbed.

FUZZ_EXAMPLES sets how many; `make fuzz` tries many more than `make test`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any

import numpy as np
import pytest
from aiortc.rtp import RtcpPacket, RtpPacket
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import GatewayConfig
from gateway.gateway import Gateway
from gateway.grant import LOCAL, Grant, Scope
from gateway.media.opus import Encoder
from gateway.media.receive import OpusReceiver
from gateway.realtime.responses import KEPT
from gateway.realtime.session import RealtimeSession
from gateway.twilio.session import TwilioSession
from gateway.twilio.wire import StartBody
from gateway.webrtc_leg import PacketSink
from tests.support import media_stream as ms
from tests.support.fake_call import FakeStack, tone
from tests.support.fuzz import REALTIME, RTP, TWILIO, damaged, damaged_bytes, damaged_sdp
from voice_agent.clock import ManualClock
from voice_agent.errors import UsageError
from voice_agent.types import FrameFlag

pytestmark = pytest.mark.unit

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
few = settings(many, max_examples=max(25, EXAMPLES // 10))
HOLDERS = (LOCAL, Grant("page", frozenset([Scope.CALL]), frozenset()))


class Box:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def put(self, text: str, key: str | None = None) -> None:
        self.events.append(json.loads(text))

    def drop(self, key: str) -> None: ...


@many
@given(st.sampled_from(HOLDERS), st.lists(damaged(REALTIME), min_size=1, max_size=8))
def test_realtime(grant: Grant, messages: list[str | bytes]) -> None:
    box = Box()
    session = RealtimeSession(box, "gpt-realtime", lead_ms=100, grant=grant)
    call = FakeStack().open_call(None, session.on_event, 100)
    session.attach(call)
    for message in messages:
        before = len(box.events)
        session.receive(message)
        session.tick()
        for event in box.events[before:]:
            assert event["type"]
            assert event["event_id"]
            if event["type"] == "error":
                assert event["error"]["code"] != "VA300", (message, event)
    for _ in range(3):
        session.tick()
    assert len(session._responses) <= KEPT
    session.receive(json.dumps({"type": "input_audio_buffer.clear"}))
    assert box.events[-1]["type"] == "input_audio_buffer.cleared", "it still answers"


@many
@given(st.lists(damaged(TWILIO), min_size=1, max_size=12))
def test_media_stream(messages: list[str | bytes]) -> None:
    box = Box()
    call = FakeStack().open_call(None, lambda event: session.on_event(event), 100)
    body = StartBody(streamSid=ms.STREAM)
    errors: list[str] = []
    session = TwilioSession(box, body, call, ManualClock(), lead_ms=100, on_error=errors.append)
    for message in messages:
        session.receive(message)
        session.tick()
    heard = len(call.heard)
    session.receive(json.dumps(ms.media(b"\xff" * 160)))
    for _ in range(3):
        session.tick()
    assert len(call.heard) > heard, "the caller is still heard"
    assert set(errors) <= {"invalid_json", "invalid_value", "invalid_audio", "VA116",
                           "input_audio_buffer_full"}  # fmt: skip


@few
@given(damaged_sdp())
def test_sdp(sdp: str) -> None:
    gateway = Gateway(FakeStack(), GatewayConfig())

    async def offered() -> None:
        n_tasks = len(asyncio.all_tasks())
        n_open = len(os.listdir("/proc/self/fd"))
        line = gateway.rtc_line(lambda message: None)
        with contextlib.suppress(UsageError):
            assert (await line.open({"sdp": sdp}))["sdp"].startswith("v=0")
        await line.close()
        for _ in range(100):
            if len(asyncio.all_tasks()) <= n_tasks and len(os.listdir("/proc/self/fd")) <= n_open:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(asyncio.all_tasks())

    asyncio.run(offered())


@many
@given(damaged_bytes(RTP), damaged_bytes(bytes([0x80, 200, 0, 6]) + bytes(24)))
def test_rtp(packet: bytes, report: bytes) -> None:
    """What the media library does not refuse reaches our receiver, which takes anything."""
    sink = PacketSink(OpusReceiver(), ManualClock())
    try:
        parsed = RtpPacket.parse(packet)
    except ValueError:
        pass
    else:
        assert sink.add(parsed) == (False, None)
        for _ in range(5):
            assert sink._receiver.frame().pcm.shape == (320,)
    with contextlib.suppress(ValueError):
        RtcpPacket.parse(report)


PACKETS = [Encoder().encode(tone(480, 440.0, 480 * n)) for n in range(4)]


@many
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PACKETS).flatmap(damaged_bytes) | st.binary(max_size=1500),
            st.integers(0, 20).map(lambda n: n * 960) | st.integers(0, (1 << 32) - 1),
            st.floats(0, 500),
        ),
        max_size=12,
    )
)
def test_opus(packets: list[tuple[bytes, int, float]]) -> None:
    receiver = OpusReceiver()
    for n, (payload, timestamp, at_ms) in enumerate(packets):
        receiver.add(timestamp, payload, 20.0 * n + at_ms)
        frame = receiver.frame()
        assert frame.pcm.shape == (320,)
        assert frame.pcm.dtype == np.int16
        assert frame.flag in FrameFlag
    receiver.close()
    receiver.close()
