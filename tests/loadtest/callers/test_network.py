"""A slow network in virtual time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from loadtest.callers.clip import FRAME, Pcm
from loadtest.callers.ear import Ear
from loadtest.callers.network import Network, Path, SlowLine
from tests.support.virtual_loop import VirtualLoop, run_virtual

pytestmark = pytest.mark.unit


def test_nothing_overtakes_on_a_stream_packets_do() -> None:
    network = Network(delay_ms=50, jitter_ms=40)
    sent = [0.02 * k for k in range(500)]
    for stream in (True, False):
        path = Path(network, 1, stream=stream)
        arrived = [path.arrival(at) for at in sent]
        assert min(b - a for a, b in zip(sent, arrived, strict=True)) >= 0.05
        assert (sorted(arrived) == arrived) is stream


def test_a_stall_holds_what_was_sent_in_it_back_to_its_end() -> None:
    path = Path(Network(stall_ms=300, stall_every_s=2.0), 3, stream=True)
    waits = [path.arrival(0.02 * k) - 0.02 * k for k in range(1500)]
    stalled = [w for w in waits if w > 0.01]
    assert max(waits) == pytest.approx(0.3, abs=0.02)
    assert 0.03 < len(stalled) / len(waits) < 0.35


def test_a_slow_line_delays_both_ways_and_loses_nothing() -> None:
    class Echo:
        lost = ""

        async def open(self, ear: Ear, hold_s: float) -> None:
            self.ear = ear
            self.got: list[tuple[float, int]] = []

        async def send(self, frame: Pcm) -> None:
            now = asyncio.get_running_loop().time()
            self.got.append((now, int(frame[0])))
            self.ear.own("a")
            self.ear.play(frame, now, "a")

        async def close(self) -> None:
            pass

    async def main() -> tuple[float, list[tuple[float, int]], Ear]:
        inner, ear, loop = Echo(), Ear(), asyncio.get_running_loop()
        line = SlowLine(inner, Network(delay_ms=100), 1)
        await line.open(ear, 1.0)
        start = loop.time()
        for k in range(10):
            await line.send(np.full(FRAME, 5000 + k, np.int16))
        await asyncio.sleep(1.0)
        await line.close()
        return start, inner.got, ear

    start, got, ear = run_virtual(main(), VirtualLoop())
    assert [value for _, value in got] == [5000 + k for k in range(10)]
    assert got[0][0] - start == pytest.approx(0.1, abs=0.01)
    assert ear.stretches[0].start_s - start == pytest.approx(0.2, abs=0.01)
    assert ear.foreign == 0
    assert ear.pieces == 10
