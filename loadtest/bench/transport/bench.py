"""`python -m loadtest.bench transport`: CPU time of carrying calls, ours beside stock aiortc.

Each subject serves N calls that speak both ways all the time; the callers are another process. CPU
time is the server's own and its workers' (user and system), between two moments in mid-call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

from gateway.media import g711
from gateway.sip.settings import RTP_PORTS_PER_CALL
from loadtest.bench.__main__ import CLIPS
from voice_agent.audio import resample
from voice_agent.types import OUT_RATE

from .callers import RtcCaller, SocketCaller
from .sipp import SippCalls, free_ports
from .voice import opus_packets, speech_24k

WARM_S = 14.0  # by then a line without loss is known to be one, and no copies are made for it
FRAMES = 50  # a second
GOAL = 3.0  # percent of a core for each active call


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    kind: str
    workers: int = 0
    websocket: bool = False
    telephone: bool = False
    most: int = 1000  # calls that one process carries


SUBJECTS = (
    Subject("WebRTC, stock aiortc", "stock", most=8),
    Subject("WebRTC in process", "ours"),
    Subject("WebRTC, one media worker", "ours", workers=1),
    Subject("Realtime WebSocket", "ours", websocket=True),
    Subject("SIP, G.711 (sipp)", "ours", telephone=True),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """ms of CPU for 20 ms of one call both ways; the server process, and its workers.

    delivered: of the frames of the time, the share that the callers got; heard: the server; spoken:
    those of the server's voice, as silence is cheaper to send.
    """

    name: str
    calls: int
    core_ms: float
    workers_ms: float
    delivered: float
    heard: float
    spoken: float
    underruns: float

    @property
    def percent(self) -> float:
        """Of a core, for a call."""
        return (self.core_ms + self.workers_ms) * FRAMES / 10.0

    @property
    def calls_per_core(self) -> float:
        return 100.0 / self.percent


def _cpu_s(process: psutil.Process) -> tuple[float, float]:
    """(the server's, its workers')."""
    own = process.cpu_times()
    workers = 0.0
    for child in process.children(recursive=True):
        times = child.cpu_times()
        workers += times.user + times.system
    return own.user + own.system, workers


async def measure(
    subject: Subject, calls: int, seconds: float, clips: Path, make: Callable[[str, int], list[Any]]
) -> Cost:
    """make: the callers, of an address and, over the telephone, a SIP port."""
    command = [sys.executable, "-m", "loadtest.bench.transport.server", subject.kind]
    command += [str(subject.workers), str(clips)]
    sip_port = 0
    if subject.telephone:
        n = RTP_PORTS_PER_CALL * calls
        sip_port = free_ports(n + 2)
        command += [str(sip_port), str(n)]
    pipe = subprocess.PIPE
    server = await asyncio.to_thread(subprocess.Popen, command, stdin=pipe, stdout=pipe)
    try:
        assert server.stdout is not None
        port = int(await asyncio.to_thread(server.stdout.readline) or b"0")
        if not port:
            raise RuntimeError(f"the server of {subject.name!r} did not start")
        url = f"http://127.0.0.1:{port}"
        callers, connected, over = make(url, sip_port), asyncio.Semaphore(0), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(caller.run(connected, over))
                await connected.acquire()
            await asyncio.sleep(WARM_S)
            process = psutil.Process(server.pid)
            before, told, got = _cpu_s(process), await _told(url), sum(c.got for c in callers)
            start = asyncio.get_running_loop().time()
            await asyncio.sleep(seconds)
            after, tells, gets = _cpu_s(process), await _told(url), sum(c.got for c in callers)
            frames = (asyncio.get_running_loop().time() - start) * FRAMES * calls
            over.set()
    finally:
        if server.stdin is not None:
            server.stdin.close()
        await asyncio.to_thread(server.wait)
        if server.stdout is not None:
            server.stdout.close()
    return Cost(
        subject.name,
        calls,
        (after[0] - before[0]) * 1000 / frames,
        (after[1] - before[1]) * 1000 / frames,
        (gets - got) / frames,
        (tells["received"] - told["received"]) / frames,
        (tells["played"] - told["played"]) / frames,
        (tells["underruns"] - told["underruns"]) / frames,
    )


async def _told(url: str) -> dict[str, float]:
    """The server's own counts."""
    async with httpx2.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    name = "voice_agent_bench_"
    rows = [line.split(" ") for line in text.splitlines() if line.startswith(name)]
    return {row[0].removeprefix(name): float(row[1]) for row in rows}


def table(costs: list[Cost]) -> str:
    """Markdown."""
    rows = [
        "| transport | calls | CPU ms per frame: server | workers | % of a core per call "
        "| calls per core | frames delivered | heard | spoken | underruns |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in costs:
        rows.append(
            f"| {c.name} | {c.calls} | {c.core_ms:.3f} | {c.workers_ms:.3f} | {c.percent:.2f} "
            f"| {c.calls_per_core:.0f} | {c.delivered:.1%} | {c.heard:.1%} "
            f"| {c.spoken:.1%} | {c.underruns:.1%} |"
        )
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m loadtest.bench transport", description=__doc__)
    p.add_argument("--calls", type=int, default=16, help="at once; stock aiortc: 8 at most")
    p.add_argument("--seconds", type=float, default=20.0)
    p.add_argument("--clips", type=Path, default=CLIPS, help="folder of WAV files to speak")
    p.add_argument("--json", type=Path)
    p.add_argument("--only", default="", help="the subjects whose names contain this")
    p.add_argument(
        "--impaired", action="store_true", help="not the cost: a line with loss and jitter instead"
    )
    p.add_argument("--loss", type=float, default=5.0, help="percent of packets")
    p.add_argument("--delay-ms", type=float, default=50.0, help="each way")
    p.add_argument("--jitter-ms", type=float, default=20.0, help="more or less than that")
    p.add_argument("--transcripts", type=int, default=60, help="clips to transcribe")
    a = p.parse_args(argv)
    if a.impaired:
        from . import impaired  # brings the recogniser

        return impaired.main(a)
    speech = speech_24k(a.clips)
    packets = opus_packets(speech)
    costs = []
    for subject in SUBJECTS:
        if a.only and a.only not in subject.name:
            continue
        if subject.telephone and shutil.which("sipp") is None:
            print(f"NOT RUN: {subject.name}: needs sipp")
            continue
        calls = min(a.calls, subject.most)

        def make(url: str, sip: int, subject: Subject = subject, calls: int = calls) -> list[Any]:
            if subject.telephone:
                other = np.roll(speech, len(speech) // 2)  # what we say at once would be an echo
                return [SippCalls(sip, calls, g711.encode_ulaw(resample(other, OUT_RATE, 8000)))]
            if subject.websocket:
                return [SocketCaller(url, speech) for _ in range(calls)]
            return [RtcCaller(url, packets) for _ in range(calls)]

        costs.append(asyncio.run(measure(subject, calls, a.seconds, a.clips, make)))
        print(table(costs[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(costs))
    worst = max((c.percent for c in costs if c.name != SUBJECTS[0].name), default=0.0)
    print(f"\ngoal: {GOAL:.0f} % of a core per active call; the dearest of ours: {worst:.2f} %")
    if a.json is not None:
        a.json.parent.mkdir(parents=True, exist_ok=True)
        a.json.write_text(json.dumps([asdict(c) for c in costs], indent=1) + "\n", "utf-8")
    return 0
