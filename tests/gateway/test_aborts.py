"""Clients that leave at every stage, again and again: tasks, descriptors, memory stay as they were.

ABORT_CYCLES sets how often; `make test-aborts` does it 10,000 times.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os

import psutil
import pytest

from tests.support.aborts import STAGES
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving
from tests.support.rtc_peer import peer

pytestmark = pytest.mark.unit

CYCLES = int(os.environ.get("ABORT_CYCLES", "200"))
TOGETHER = 10
OBJECTS_EACH = 3.0  # a kept session is hundreds
BYTES_EACH = 4096  # over thousands of cycles; below that the allocator's own ups and downs decide


class ForgetfulStack(FakeStack):
    """Keeps no calls: what is counted here is what the server keeps."""

    def open_call(self, *args: object, **more: object):  # type: ignore[no-untyped-def]
        call = super().open_call(*args, **more)  # type: ignore[arg-type]
        self.calls.clear()
        return call


async def settled(server: Running, n_tasks: int, n_open: int) -> None:
    """Everything is as it was; else says what is left."""

    def left() -> dict[str, int]:
        return {
            "calls": len(server.gateway.live),
            "lines": server.gateway.admission.active,
            "clock": len(server.gateway.pacer),
            "connections": len(server.app.state.crowd),
            "tasks": max(0, len(asyncio.all_tasks()) - n_tasks),
            "descriptors": max(0, len(os.listdir("/proc/self/fd")) - n_open),
        }

    for _ in range(2000):
        if not any(left().values()):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(left())


async def abort(server: Running, n: int) -> None:
    names = list(STAGES)
    for first in range(0, n, TOGETHER):
        some = [STAGES[names[k % len(names)]] for k in range(first, min(n, first + TOGETHER))]
        await asyncio.gather(*(stage(server) for stage in some))


async def test_clients_that_leave_at_every_stage_leave_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    stack = ForgetfulStack(greeting="Hello there, how can I help you?")
    limits = {"max_calls": 100, "connect_timeout_s": 0.3}
    async with serving(stack, **limits) as server:
        n_tasks = len(asyncio.all_tasks())
        await abort(server, 2 * len(STAGES))  # what is made once, is made: the echo canceller's own
        await settled(server, n_tasks, 1 << 30)
        n_open = len(os.listdir("/proc/self/fd"))
        gc.collect()
        n_objects, n_bytes = len(gc.get_objects()), psutil.Process().memory_info().rss
        await abort(server, CYCLES)
        await settled(server, n_tasks, n_open)
        gc.collect()
        more = len(gc.get_objects()) - n_objects
        assert more < OBJECTS_EACH * CYCLES, f"{more} objects after {CYCLES} cycles"
        if CYCLES >= 5000:
            grown = psutil.Process().memory_info().rss - n_bytes
            assert grown < BYTES_EACH * CYCLES, f"{grown} bytes after {CYCLES} cycles"
    faults = [r.getMessage() for r in caplog.records if r.name.startswith(("gateway", "voice"))]
    assert not faults, faults


@pytest.mark.parametrize("stage", STAGES)
async def test_each_stage_is_left_behind(stage: str) -> None:
    """One by one, so that a failure has a name."""
    stack = ForgetfulStack(greeting="Hello there, how can I help you?")
    async with serving(stack, connect_timeout_s=0.2) as server:
        n_tasks = len(asyncio.all_tasks())
        await STAGES[stage](server)
        await settled(server, n_tasks, 1 << 30)
        n_open = len(os.listdir("/proc/self/fd"))
        await STAGES[stage](server)
        await settled(server, n_tasks, n_open)


async def test_peers_that_vanish_while_they_connect_leave_nothing() -> None:
    """Through ICE and DTLS: the peer is gone right after its answer, or once it talks."""
    async with serving(ForgetfulStack(), connect_timeout_s=0.3, hold_s=0.3) as server:

        async def vanish(talks: bool) -> None:
            async with peer() as p:
                await p.connect(server)
                if talks:
                    await p.until("started")

        n_tasks = len(asyncio.all_tasks())
        await vanish(True)
        n_open = len(os.listdir("/proc/self/fd"))
        for n in range(max(6, CYCLES // 100)):
            await vanish(n % 2 == 0)
        await settled(server, n_tasks, n_open)
