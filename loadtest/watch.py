"""What the server uses while the calls last: CPU, memory, its own numbers; once a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx2
import psutil

PERIOD_S = 1.0
PREFIX = "voice_agent_"
Read = Callable[[], Mapping[str, float]]
STAGES = {
    "recognition": ("stt_busy_seconds", "stt_workers"),
    "voice": ("voice_busy_seconds", "voice_workers"),
    "vad": ("vad_busy_seconds", ""),
}
"""Stage -> (counter of its busy seconds, number of its workers)."""


STEPS = "engine_steps_total"


@dataclass(frozen=True, slots=True)
class Sample:
    """at_s: of the loop's clock. cpu_s: used by the server and its workers so far, None if its
    process is not to be seen. numbers: its metrics, by name without prefix, labels summed."""

    at_s: float
    cpu_s: float | None
    memory_mb: float | None
    numbers: Mapping[str, float]


@dataclass(slots=True)
class Watch:
    """Owns the sampling of one run; `samples` is complete once `run` was cancelled."""

    read: Callable[[], Any]
    pid: int | None
    samples: list[Sample] = field(default_factory=list)

    async def look(self) -> None:
        cpu_s, memory_mb = usage(self.pid) if self.pid is not None else (None, None)
        numbers: Mapping[str, float] = {}
        with contextlib.suppress(httpx2.HTTPError):  # a busy server may not answer in time
            numbers = await self.read()
        now = asyncio.get_running_loop().time()
        self.samples.append(Sample(now, cpu_s, memory_mb, numbers))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.look()

    # ------------------------------------------------------------ what came of it

    def change(self, name: str) -> float | None:
        """Of a counter, from the first sample to the last; None: the server has no such number."""
        seen = [s.numbers[name] for s in self.samples if name in s.numbers]
        return seen[-1] - seen[0] if len(seen) > 1 else None

    def peak(self, name: str) -> float | None:
        return max((s.numbers[name] for s in self.samples if name in s.numbers), default=None)

    def utilisation(self) -> dict[str, float]:
        """Share of the time that each stage's workers were busy; the engine's is an estimate:
        steps times the median step of that moment."""
        if len(self.samples) < 2:
            return {}
        wall_s = self.samples[-1].at_s - self.samples[0].at_s
        out = {}
        for stage, (busy, workers) in STAGES.items():
            busy_s = self.change(busy)
            if busy_s is not None and wall_s > 0:
                out[stage] = busy_s / wall_s / max(1.0, self.peak(workers) or 1.0)
        if self.peak(STEPS) is not None:
            out["engine"] = self._stepping_s() / wall_s
        return out

    def _stepping_s(self) -> float:
        known = [s.numbers for s in self.samples if STEPS in s.numbers]
        return sum(
            (b[STEPS] - a[STEPS]) * b["engine_step_ms_p50"] / 1000 for a, b in pairwise(known)
        )

    def shed(self) -> dict[str, float]:
        """What the server says that it did not do because of load."""
        names = {name for s in self.samples for name in s.numbers}
        out = {}
        for name in sorted(n for n in names if is_shedding(n)):
            change = self.change(name)
            if change:
                out[name] = change
        return out

    def kv(self) -> dict[str, float] | None:
        """Blocks of the language model's memory; None: it is not in this server."""
        total = self.peak("engine_kv_blocks_total")
        if total is None:
            return None
        free = min(s.numbers.get("engine_kv_blocks_free", total) for s in self.samples)
        held = self.peak("engine_kv_blocks_held") or 0.0
        evicted = self.change("engine_evicted_blocks_total") or 0.0
        preempted = self.change("engine_preemptions_total") or 0.0
        return {
            "blocks": total, "held_peak": held, "full_peak_share": 1.0 - free / max(1.0, total),
            "evicted": evicted, "preemptions": preempted,
        }  # fmt: skip


def is_shedding(name: str) -> bool:
    words = name.split("_")
    return words[-1] == "total" and ("load" in words or "shed" in words)


def usage(pid: int) -> tuple[float | None, float | None]:
    """(CPU seconds, resident MB) of a process and its children; None when it has ended."""
    try:
        process = psutil.Process(pid)
        cpu_s = memory = 0.0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                cpu_s += times.user + times.system
                memory += one.memory_info().rss
    except psutil.NoSuchProcess:
        return None, None
    return cpu_s, memory / 2**20


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus' text: name without our prefix -> value; of a name with labels, the sum. The
    buckets of histograms are left out."""
    out: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(PREFIX) or "_bucket{" in line:
            continue
        key, _, value = line.rpartition(" ")
        name = key.partition("{")[0].removeprefix(PREFIX)
        with contextlib.suppress(ValueError):
            out[name] = out.get(name, 0.0) + float(value)
    return out


def over_http(url: str, key: str) -> Callable[[], Any]:
    """Reads /metrics of a server."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    trusted = ssl.create_default_context()  # once: it takes longer than the request

    async def read() -> dict[str, float]:
        async with httpx2.AsyncClient(timeout=5.0, headers=headers, verify=trusted) as client:
            answer = await client.get(f"{url}/metrics")
        return parse_metrics(answer.text) if answer.status_code == 200 else {}

    return read


def of_this_process(gauges: Read) -> Callable[[], Any]:
    async def read() -> dict[str, float]:
        return dict(gauges())

    return read


OWN_PID = os.getpid
