"""WebRTC against an aiortc peer over real sockets: sound both ways, events, and no leaks."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from typing import Any

import numpy as np
import pytest
from aiortc import RTCRtpReceiver

from gateway.webrtc_leg import JITTER_ATTRIBUTE, with_opus_parameters
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving
from tests.support.rtc_peer import peer
from voice_agent.events import EndReason
from voice_agent.types import FrameFlag

pytestmark = pytest.mark.unit


def test_aiortc_still_has_the_attribute_we_replace() -> None:
    class Transport:
        state = "new"

    assert hasattr(RTCRtpReceiver("audio", Transport()), JITTER_ATTRIBUTE)


def test_the_answer_asks_for_fec() -> None:
    sdp = "v=0\r\na=rtpmap:111 opus/48000/2\r\na=rtpmap:0 PCMU/8000\r\n"
    assert with_opus_parameters(sdp) == (
        "v=0\r\na=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\n"
        "a=rtpmap:0 PCMU/8000\r\n"
    )


async def test_a_call_with_greeting_turn_and_barge_in() -> None:
    stack = FakeStack(greeting="Hello, how can I help?", reply_s=4.0)
    async with serving(stack) as server, peer() as p:
        assert (await p.connect(server)).status_code == 200
        assert "useinbandfec=1" in p.answer
        await p.until("reply")
        await p.until("heard", 3)
        p.microphone.loud = True  # over the greeting
        first = await p.until("done")
        assert first["status"] == "interrupted"
        assert first["heard"] != first["text"]
        await p.until("partial")
        p.microphone.loud = False
        final = await p.until("final")
        assert final["text"] == "what is the time"
        await p.until("heard", 20, reply=1)
        call = stack.calls[0]
        received = [f.flag for f in call.heard].count(FrameFlag.RECEIVED)
        assert received > 0.7 * len(call.heard) - 10
        spectrum = np.abs(np.fft.rfft(p.heard()[-3200:] * np.hanning(3200)))
        assert abs(int(np.argmax(spectrum)) * 5 - call.hz) < 15
        p.channel.send(json.dumps({"type": "hangup"}))
        ended = await p.until("ended")
        assert ended["reason"] == "caller_hung_up"
    assert stack.calls[0].ended is EndReason.CALLER_HUNG_UP


async def test_a_vanished_page_ends_the_call() -> None:
    stack = FakeStack()
    async with serving(stack, hold_s=0.0) as server:
        async with peer() as p:
            await p.connect(server)
            await p.until("started")
        async with asyncio.timeout(10):
            while server.gateway.live:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert stack.calls[0].ended is EndReason.TRANSPORT_LOST


async def test_the_page_tells_how_far_behind_it_plays() -> None:
    stack = FakeStack()
    async with serving(stack) as server, peer() as p:
        await p.connect(server)
        await p.until("started")
        for message in ('{"type":"playback","behind_ms":93.6}', "[]", '{"type":"playback"}',
                        '{"type":"playback","behind_ms":1e9}', '{"type":"hangup"}'):  # fmt: skip
            p.channel.send(message)
        await p.until("ended")
    assert stack.calls[0].behind_ms == [94]


async def test_the_agents_goodbye_is_told() -> None:
    stack = FakeStack()
    async with serving(stack) as server, peer() as p:
        await p.connect(server)
        await p.until("started")
        stack.calls[0].hang_up(EndReason.AGENT_GOODBYE)
        assert (await p.until("ended"))["reason"] == "agent_goodbye"


@pytest.mark.parametrize(
    ("body", "status"),
    [({"sdp": "nonsense"}, 400), ({"sdp": 5}, 400), ({"agent": "nobody"}, 400),
     ({"type": "answer"}, 400), ({"sdp": "x" * 70_000}, 400),
     ({"sdp": "v=0\r\nm=audio 9 X\r\na=rtpmap:1 opus/48000\r\n"}, 400)],
)  # fmt: skip
async def test_bad_offers_are_refused_and_leave_nothing(body: dict[str, Any], status: int) -> None:
    async with serving(FakeStack()) as server, peer() as p:
        response = await p.connect(server, **body)
        assert response.status_code == status
        assert response.json()["error"]["message"]
        assert server.gateway.admission.active == 0


async def test_a_full_server_says_when_to_come_back() -> None:
    async with serving(FakeStack(), max_calls=1) as server, peer() as p, peer() as q:
        await p.connect(server)
        await p.until("started")
        response = await q.connect(server)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["code"] == "VA460"


async def test_twenty_calls_leave_no_task_and_no_descriptor() -> None:
    stack = FakeStack()
    async with serving(stack) as server:

        async def one_call() -> None:
            async with peer() as p:
                await p.connect(server)
                await p.until("started")
                p.channel.send(json.dumps({"type": "hangup"}))
                await p.until("ended")
            async with asyncio.timeout(10):
                while server.gateway.live:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        await one_call()
        gc.collect()
        await asyncio.sleep(0.1)
        tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await one_call()
        gc.collect()
        await asyncio.sleep(0.2)
        assert len(asyncio.all_tasks()) <= tasks
        assert len(os.listdir("/proc/self/fd")) <= files + 1
        assert len(server.gateway.pacer) == 0
