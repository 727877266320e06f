"""How many workers and threads recognition and the voice get: pure, from this machine's speeds.

On two cores recognition has one worker of one thread, and the voice a second one where the calls
would keep one busy for over `BUSY` of its time: its pieces are short, and a first sound then does
not wait behind others' while a core is idle. With more cores each gets as many workers as its
predicted load needs; what is left makes single passes faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .choose import CYCLE_S, PASSES_PER_TURN, REPLY_S, Speeds, VoiceSpeed

BUSY = 0.6
"""Share of a worker's time that may be planned for: above it waits grow faster than work."""
MOST_THREADS = 2
"""Of one worker: a third gains little in passes and pieces as short as these."""
MOST_SHARED = 2
"""Workers of the voice where all stages share the same two or three cores."""
KEPT = 2
"""Cores for the event loop and the engine."""


@dataclass(frozen=True, slots=True)
class Crew:
    """workers: pieces of work at once. threads: of each."""

    workers: int = 1
    threads: int = 1

    def __str__(self) -> str:
        many = f"{self.workers} workers" if self.workers > 1 else "1 worker"
        return f"{many} of {self.threads} thread{'s' if self.threads > 1 else ''}"


@dataclass(frozen=True, slots=True)
class StagePlan:
    stt: Crew = Crew()
    voice: Crew = Crew()

    def __str__(self) -> str:
        return f"recognition {self.stt}, voice {self.voice}"


def plan_stages(speeds: Speeds | None, stt: str, voice: str, calls: int, cores: int) -> StagePlan:
    """For so many calls at once. speeds: None, or of a GPU: one worker of one thread each."""
    spare = cores - KEPT
    if speeds is None or speeds.device != "cpu":
        return StagePlan()
    stt_s = PASSES_PER_TURN * speeds.stt_ms.get(stt, 0.0) / 1000.0
    voice_s = REPLY_S * speeds.voice.get(voice, VoiceSpeed(0.0, 0.0)).rtf
    wanted = [_workers(calls * work_s / CYCLE_S) for work_s in (stt_s, voice_s)]
    if spare < 2:
        return StagePlan(voice=Crew(min(cores, MOST_SHARED, wanted[1])))
    while sum(wanted) > spare:  # who has most gives first
        wanted[wanted.index(max(wanted))] -= 1
    threads = max(1, min(MOST_THREADS, spare // sum(wanted)))
    return StagePlan(*(Crew(workers, threads) for workers in wanted))


def _workers(load: float) -> int:
    return max(1, math.ceil(load / BUSY))
