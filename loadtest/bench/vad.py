"""Voice activity detection of many calls: `python -m loadtest.bench vad [--calls 1 16 64 256]`.

Every call has a task that pushes a frame each 20 ms, as a call's ear does; the frames of all calls
come in one tick, as a media worker's bundle brings them, and calls begin at different places of a
window. `cpu`: processor time of the whole process for each 32 ms window, detector, batching and
tasks. `added`: from a window's last frame to its probability, less what the detector itself took of
that time: what batching and the event loop add. `--spread` lets calls tick at different moments.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.bench.llm.measure import ms, tail
from loadtest.report import hardware, write_json
from voice_agent.audio import read_wav
from voice_agent.cli.runtime import settle
from voice_agent.clock import MonotonicClock
from voice_agent.types import FRAME_MS, IN_FRAME, IN_RATE, Frame, Pcm16
from voice_agent.vad import SileroVad, State, VadService, VadStream

CLIP = Path(__file__).parents[2] / "tests" / "data" / "clips" / "ps_austen_0870.wav"
CALLS = (1, 16, 64, 256)
CPU_MS, ADDED_MS = 0.10, 8.0
"""Goals at 256 calls."""
PHASES = 8
WARM_S = 1.0


class TimedVad(SileroVad):
    """took_s: of the pass that ended last."""

    took_s = 0.0

    def score(
        self, windows: NDArray[np.float32], states: State
    ) -> tuple[NDArray[np.float32], State]:
        began = time.perf_counter()
        scored = super().score(windows, states)
        self.took_s = time.perf_counter() - began
        return scored


class Ears:
    """`n` streams of one service and their tasks."""

    def __init__(self, n: int, pcm: Pcm16, *, spread: bool) -> None:
        self._model = TimedVad()
        self.service = VadService(MonotonicClock(), self._model)
        self._frames = [Frame(pcm[i : i + IN_FRAME]) for i in range(0, len(pcm), IN_FRAME)][:-1]
        self._n = n
        self._spread = spread
        self.added_ms: list[float] = []
        self.whole_ms: list[float] = []

    async def run(self, seconds: float) -> dict[str, Any]:
        self.service.warm()
        jobs = [asyncio.create_task(self._ear(i)) for i in range(self._n)]
        settle()
        await asyncio.sleep(WARM_S)
        self.added_ms.clear()
        self.whole_ms.clear()
        windows, passes = self.service.windows, self.service.calls
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        windows, passes = self.service.windows - windows, self.service.calls - passes
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        self.service.close()
        return {
            "calls": self._n,
            "windows": windows,
            "windows_per_pass": windows / max(1, passes),
            "cpu_ms_per_window": 1000 * cpu / max(1, windows),
            "cpu_share": cpu / wall,
            "added_ms": tail(self.added_ms),
            "whole_ms": tail(self.whole_ms),
            "on_time": windows / (self._n * wall * IN_RATE / 512),
        }

    async def _ear(self, i: int) -> None:
        stream, n = self.service.open(), i % PHASES
        for k in range(n):  # so that calls end their windows at different ticks
            await stream.push(self._frames[k])
        loop = asyncio.get_running_loop()
        shift_s = (i % 20) / 1000 if self._spread else 0.0
        due_s = (loop.time() // 0.02 + 2) * 0.02 + shift_s
        while True:
            await asyncio.sleep(due_s - loop.time())
            due_s += FRAME_MS / 1000
            await self._push(stream, self._frames[n % len(self._frames)])
            n += 1

    async def _push(self, stream: VadStream, frame: Frame) -> None:
        began = time.perf_counter()
        if await stream.push(frame):
            took = time.perf_counter() - began
            self.whole_ms.append(took * 1000)
            self.added_ms.append(max(0.0, took - self._model.took_s) * 1000)


def run(calls: Sequence[int], seconds: float, *, spread: bool = False) -> dict[str, Any]:
    pcm = read_wav(CLIP, IN_RATE).pcm
    rows = []
    for n in calls:
        rows.append(asyncio.run(Ears(n, pcm, spread=spread).run(seconds)))
        show_row(rows[-1])
    return {"hardware": hardware(), "seconds": seconds, "spread": spread, "rows": rows}


def show_row(row: dict[str, Any]) -> None:
    print(
        f"{row['calls']:6} calls: {row['cpu_ms_per_window']:.3f} CPU ms a window, "
        f"{100 * row['cpu_share']:.0f} % of a core, {row['windows_per_pass']:.1f} windows a pass; "
        f"added p50/p99/max {ms(row['added_ms'], 'p50')}/{ms(row['added_ms'], 'p99')}/"
        f"{ms(row['added_ms'], 'max')} ms, {100 * row['on_time']:.0f} % of real time",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.bench vad",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--calls", type=int, nargs="+", default=list(CALLS))
    p.add_argument("--seconds", type=float, default=8.0)
    p.add_argument("--spread", action="store_true")
    p.add_argument("--json", type=Path)
    a = p.parse_args(argv)
    print(hardware())
    body = run(a.calls, a.seconds, spread=a.spread)
    most = body["rows"][-1]
    print(
        f"goals at 256 calls: {CPU_MS:.2f} CPU ms a window, batching adds at most "
        f"{ADDED_MS:.0f} ms; at {most['calls']}: {most['cpu_ms_per_window']:.3f} and "
        f"{most['added_ms']['max']:.1f} ms"
    )
    write_json(a.json, body)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
