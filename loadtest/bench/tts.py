"""Voices as a call uses them: first sound, real-time factor, and several callers on one thread.

Run: python -m loadtest.bench tts [--voice piper-joe ...] [--threads 1] [--repeats 5] [--json FILE]

`clauses`: one clause alone, wall and CPU milliseconds to its first piece and to its last, medians.
`callers`: n callers ask for a clause of ten words at the same moment through the shared service;
milliseconds to the first sound and to the last piece over all of them, audio seconds made per
second, peak memory, and gaps: a later piece that came after the sound before it had run out. With
more callers the throughput must not fall from its peak, nor the median grow more than they do.

Without `--voice` every installed voice is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from voice_agent.clock import MonotonicClock
from voice_agent.measure import clause, load_voice
from voice_agent.models import ModelStore
from voice_agent.scope import CancelScope
from voice_agent.tts.base import Voice
from voice_agent.tts.service import VoiceService
from voice_agent.types import OUT_RATE

TEXTS = {
    2: "Hello there.",
    5: "Hello there, how are you?",
    10: "Hello there how are you doing today my good friend?",
    20: "The library opens at nine in the morning and closes at five except on Sundays when it is"
    " closed all.",
}
CALLERS = (1, 2, 4, 8, 16)
VOICES = ("piper-joe", "kokoro-int8")
NOISE = 0.08
"""Share by which two runs of the same thing differ here."""


@dataclass(frozen=True, slots=True)
class ClauseFigures:
    words: int
    first_ms: float
    first_cpu_ms: float
    whole_ms: float
    whole_cpu_ms: float
    audio_s: float
    first_piece_s: float

    @property
    def rtf(self) -> float:
        return self.whole_ms / 1000 / self.audio_s


@dataclass(frozen=True, slots=True)
class CallerFigures:
    callers: int
    first_ms_median: float
    first_ms_worst: float
    whole_ms_median: float
    whole_ms_worst: float
    audio_s_per_s: float
    gaps: int
    utilisation: float
    memory_mb: float


def one_clause(voice: Voice, words: int, repeats: int) -> ClauseFigures:
    """Medians over `repeats` runs of one clause, nothing else running."""
    said = clause(TEXTS[words])
    runs: list[tuple[float, float, float, float]] = []
    sizes: list[int] = []
    for _ in range(repeats):
        start, cpu = time.perf_counter(), time.process_time()
        sizes, first, first_cpu = [], 0.0, 0.0
        for piece in voice.synthesize(said, speed=1.0, cancelled=lambda: False):
            if not sizes:
                first, first_cpu = time.perf_counter() - start, time.process_time() - cpu
            sizes.append(len(piece.pcm))
        runs.append((first, first_cpu, time.perf_counter() - start, time.process_time() - cpu))
    first_ms, first_cpu_ms, whole_ms, whole_cpu_ms = (
        statistics.median(column) * 1000 for column in zip(*runs, strict=True)
    )
    return ClauseFigures(
        words,
        first_ms,
        first_cpu_ms,
        whole_ms,
        whole_cpu_ms,
        sum(sizes) / OUT_RATE,
        sizes[0] / OUT_RATE,
    )


async def several(voice: Voice, callers: int, rounds: int) -> CallerFigures:
    clock = MonotonicClock()
    service = VoiceService(voice, clock)
    said = clause(TEXTS[10])
    firsts: list[float] = []
    wholes: list[float] = []
    gaps = 0

    async def one() -> None:
        nonlocal gaps
        start = clock.now()
        dry_at: float | None = None

        def deadline_s() -> float:
            return start + 0.2 if dry_at is None else dry_at

        async for piece in service.speak(
            said, speed=1.0, deadline_s=deadline_s, scope=CancelScope("bench")
        ):
            now = clock.now()
            if dry_at is None:
                firsts.append((now - start) * 1000)
                dry_at = now
            elif now > dry_at:
                gaps += 1
                dry_at = now
            dry_at += len(piece.pcm) / OUT_RATE
        wholes.append((clock.now() - start) * 1000)

    try:
        began = clock.now()
        for _ in range(rounds):
            await asyncio.gather(*(one() for _ in range(callers)))
        wall_s = clock.now() - began
        stats = service.stats()
    finally:
        await service.close()
    return CallerFigures(
        callers,
        statistics.median(firsts),
        max(firsts),
        statistics.median(wholes),
        max(wholes),
        stats.audio_s / wall_s,
        gaps,
        stats.busy_s / wall_s,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


@dataclass(frozen=True, slots=True)
class Sweep:
    """What more callers do. kept: the least throughput past the peak, as a share of the peak's.
    growth: the most that a median grew, over that of one caller and the number of callers."""

    kept: float
    growth: float

    @property
    def good(self) -> bool:
        return self.kept >= 1.0 - NOISE and self.growth <= 1.0 + NOISE


def judged(rows: Sequence[CallerFigures]) -> Sweep:
    """rows: by number of callers, the first of them one."""
    rates = [row.audio_s_per_s for row in rows]
    peak = rates.index(max(rates))
    one = rows[0]
    growth = [
        max(row.first_ms_median / one.first_ms_median, row.whole_ms_median / one.whole_ms_median)
        * one.callers
        / row.callers
        for row in rows
    ]
    return Sweep(min(rates[peak:]) / rates[peak], max(growth))


def run(
    voice: Voice, repeats: int, sizes: Sequence[int], callers: Sequence[int]
) -> dict[str, object]:
    """Every figure of one loaded voice; the JSON's shape."""
    voice.warm()
    alone = [one_clause(voice, n, repeats) for n in sizes]
    together = [asyncio.run(several(voice, n, max(1, repeats // 2))) for n in callers]
    sweep = judged(together) if together else None
    return {
        "voice": voice.name,
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "clauses": [asdict(f) | {"rtf": f.rtf} for f in alone],
        "callers": [asdict(f) for f in together],
        "sweep": asdict(sweep) | {"good": sweep.good} if sweep else None,
    }


def show(result: dict[str, object]) -> None:
    print(f"{result['voice']} on {result['machine']}, load {result['load_average']:.1f}")
    for row in _rows(result["clauses"]):
        print(
            f"  {row['words']:>2} words: first sound {row['first_ms']:.0f} ms"
            f" (CPU {row['first_cpu_ms']:.0f}),"
            f" whole {row['whole_ms']:.0f} ms (CPU {row['whole_cpu_ms']:.0f})"
            f" for {row['audio_s']:.2f} s, RTF {row['rtf']:.2f}"
        )
    for row in _rows(result["callers"]):
        print(
            f"  {row['callers']:>2} callers: first sound {row['first_ms_median']:.0f} ms median,"
            f" {row['first_ms_worst']:.0f} worst, whole {row['whole_ms_median']:.0f},"
            f" {row['audio_s_per_s']:.1f} s of audio a second, {row['gaps']} gaps,"
            f" {row['memory_mb']:.0f} MB"
        )
    sweep = result["sweep"]
    if isinstance(sweep, dict):
        print(
            f"  past its peak the throughput keeps {100 * sweep['kept']:.0f} %; a median grows at"
            f" most {sweep['growth']:.2f} times as much as the callers:"
            f" {'good' if sweep['good'] else 'NOT GOOD'}"
        )


def _rows(value: object) -> list[dict[str, float]]:
    return value if isinstance(value, list) else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--voice", nargs="+", default=[], help="piper-joe, kokoro-int8 or a folder; all there are"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--words", type=int, nargs="+", choices=sorted(TEXTS), default=sorted(TEXTS)
    )
    parser.add_argument("--callers", type=int, nargs="+", default=list(CALLERS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    store, results = ModelStore(), []
    for name in options.voice or [v for v in VOICES if store.present(v)]:
        voice = load_voice(store, name, options.threads)
        result = run(voice, options.repeats, options.words, options.callers)
        result["threads"] = options.threads
        show(result)
        results.append(result)
    if options.json:
        options.json.write_text(json.dumps({"voices": results}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
