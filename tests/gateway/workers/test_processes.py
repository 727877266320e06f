"""Calls through real worker processes: sound both ways, stalls of the core, deaths, no leaks."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time

import numpy as np
import pytest

from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving
from tests.support.rtc_peer import Peer, peer
from voice_agent.events import EndReason
from voice_agent.types import FrameFlag

pytestmark = pytest.mark.unit


def workers(server: Running) -> list:
    pool = server.gateway.rtc_workers
    assert pool is not None
    return pool.workers


def gaps(pcm: np.ndarray) -> int:
    """Silent 5 ms pieces between the first and the last sound (16 kHz)."""
    loud = np.abs(pcm[: len(pcm) // 80 * 80].reshape(-1, 80)).max(1) > 500
    first, last = np.flatnonzero(loud)[[0, -1]]
    return int((~loud[first : last + 1]).sum())


async def until_idle(server: Running) -> None:
    async with asyncio.timeout(10):
        while server.gateway.live:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def stalled_mid_reply(server: Running, p: Peer, seconds: float) -> np.ndarray:
    """What the caller hears of the greeting when the core stands still in the midst of it."""
    await p.connect(server)
    await p.until("heard", 2)
    time.sleep(seconds)  # noqa: ASYNC251 - the stall
    await p.until("done")
    return p.heard()


async def test_a_call_with_greeting_turn_and_barge_in() -> None:
    stack = FakeStack(greeting="Hello, how can I help?", reply_s=4.0)
    async with serving(stack, media_workers=1) as server, peer() as p:
        assert (await p.connect(server)).status_code == 200
        assert "useinbandfec=1" in p.answer
        await p.until("heard", 3)
        p.microphone.loud = True  # over the greeting
        first = await p.until("done")
        assert first["status"] == "interrupted"
        assert first["heard"] != first["text"]
        await p.until("partial")
        p.microphone.loud = False
        assert (await p.until("final"))["text"] == "what is the time"
        await p.until("heard", 20, reply=1)
        call = stack.calls[0]
        received = [f.flag for f in call.heard].count(FrameFlag.RECEIVED)
        assert received > 0.7 * len(call.heard) - 10
        spectrum = np.abs(np.fft.rfft(p.heard()[-3200:] * np.hanning(3200)))
        assert abs(int(np.argmax(spectrum)) * 5 - call.hz) < 15
        p.channel.send('{"type":"playback","behind_ms":93.6}')
        p.channel.send(json.dumps({"type": "hangup"}))
        assert (await p.until("ended"))["reason"] == "caller_hung_up"
        await until_idle(server)
        assert not workers(server)[0].lines
    assert call.ended is EndReason.CALLER_HUNG_UP
    assert call.behind_ms == [94]


async def test_a_stall_of_the_core_is_not_a_hole_in_the_voice() -> None:
    stack = FakeStack(greeting="Hello, how can I help?", reply_s=2.0)
    async with serving(stack, media_workers=1) as server:
        async with peer() as p:
            assert gaps(await stalled_mid_reply(server, p, 0.1)) == 0
        assert stack.calls[0].underruns == 0
        async with peer() as q:  # more than is sent ahead: this is how a hole would look
            assert gaps(await stalled_mid_reply(server, q, 0.5)) > 10
        assert stack.calls[1].underruns > 0


async def test_a_workers_death_ends_its_own_calls_only_and_another_takes_its_place() -> None:
    stack = FakeStack(greeting="so " * 200, reply_s=20.0)
    slow: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        run(handle)
        slow.append(time.thread_time() - before)

    # of a page that does not come back
    async with serving(stack, media_workers=2, hold_s=0.0) as server, peer() as p, peer() as q:
        await p.connect(server)
        await p.until("started")
        await q.connect(server)
        await q.until("heard", 2)
        first, second = workers(server)
        assert len(first.lines) == len(second.lines) == 1
        calm = len(stack.calls[1].heard)
        asyncio.Handle._run = timed  # type: ignore[method-assign]
        try:
            os.kill(first.pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                while len(workers(server)) < 2 or workers(server)[0] is first:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]
        assert stack.calls[0].ended is EndReason.TRANSPORT_LOST
        assert stack.calls[1].ended is None
        during = len(stack.calls[1].heard) - calm
        assert during > 5  # the other call went on hearing and speaking
        assert stack.calls[1].underruns <= 0.1 * during
        slow.sort()
        assert slow[int(0.99 * len(slow))] < 0.01  # CPU seconds of one callback
        async with peer() as r:  # and calls can be placed again
            await r.connect(server)
            await r.until("heard", 2)
            assert server.gateway.metrics.render().count(b"webrtc_worker_restarts_total 1.0") == 1


async def test_calls_leave_nothing_behind_in_the_worker() -> None:
    stack = FakeStack()
    async with serving(stack, media_workers=1) as server:
        pid = workers(server)[0].pid

        async def one_call() -> None:
            async with peer() as p:
                await p.connect(server)
                await p.until("started")
                p.channel.send(json.dumps({"type": "hangup"}))
                await p.until("ended")
            await until_idle(server)

        await one_call()
        tasks, files = len(asyncio.all_tasks()), len(os.listdir(f"/proc/{pid}/fd"))
        for _ in range(8):
            await one_call()
        gc.collect()
        await asyncio.sleep(0.2)
        assert len(asyncio.all_tasks()) <= tasks
        assert len(os.listdir(f"/proc/{pid}/fd")) <= files + 1
        assert not workers(server)[0].lines


@pytest.mark.parametrize("body", [{"sdp": "nonsense"}, {"agent": "nobody"}])
async def test_bad_offers_are_refused_and_leave_nothing(body: dict[str, str]) -> None:
    async with serving(FakeStack(), media_workers=1) as server, peer() as p:
        response = await p.connect(server, **body)
        assert response.status_code == 400
        assert response.json()["error"]["message"]
        assert not workers(server)[0].lines
