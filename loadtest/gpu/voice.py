"""Kokoro's first sound, and many callers at once, on random weights of its exact architecture."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from loadtest.bench.llm.measure import ms, tail
from loadtest.gpu.bench import Bench, Json
from loadtest.gpu.models import RandomVoice
from voice_agent.clock import MonotonicClock
from voice_agent.scope import CancelScope
from voice_agent.tts.base import AudioPiece, Clause, SpokenWord
from voice_agent.tts.service import VoiceService
from voice_agent.types import OUT_RATE

CALLERS = (1, 2, 4, 8, 16)
TRIES = 50


def voice(bench: Bench) -> Json:
    """First sound by length of the phrase, with graphs and without; then the sweep of callers."""
    phrases = bench.pick(4, 1)
    rows = []
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for graphs in bench.pick((False, True), (True,)):
        made = RandomVoice(bench, graphs=graphs)
        for phrase in made.phrases[:phrases]:
            say = partial(made.say, phrase.ids)
            spent = [spent_ms(say) for _ in range(bench.pick(TRIES, 2))]
            later = tail(spent[bench.pick(3, 1) :])
            rows.append(
                {"words": phrase.words, "graphs": graphs, "ms": later, "first_ms": spent[0]}
            )
    sweep = []
    for n in bench.pick(CALLERS, (1, 2)):
        if bench.left_s() < 3:
            break
        sweep.append(asyncio.run(callers(made, n, bench.pick(4.0, 0.2), phrases)))
    return {"rows": rows, "callers": sweep, "peak_mib": peak_mib(bench)}


def spent_ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def peak_mib(bench: Bench) -> int:
    return torch.cuda.max_memory_allocated() >> 20 if bench.device.type == "cuda" else 0


async def callers(made: RandomVoice, n: int, seconds: float, phrases: int) -> Json:
    """n callers who ask the voice thread for a phrase as soon as the last one is there."""
    service = VoiceService(Humming(made), MonotonicClock())
    waits: list[float] = []
    sound_s = 0.0
    begun_s = time.perf_counter()

    async def caller(i: int) -> None:
        nonlocal sound_s
        turn = i
        while True:
            start = time.perf_counter()
            sound_s += await speak(service, turn % phrases)
            waits.append(1000 * (time.perf_counter() - start))
            turn += 1
            if time.perf_counter() - begun_s > seconds:
                return

    await asyncio.gather(*(caller(i) for i in range(n)))
    spent_s = time.perf_counter() - begun_s
    await service.close()
    return {"callers": n, "first_ms": tail(waits), "sound_s_per_s": sound_s / spent_s}


async def speak(service: VoiceService, phrase: int) -> float:
    """Seconds of sound of a committed phrase, made by the voice thread."""
    words = (SpokenWord(str(phrase), (0, 1)),)
    clause = Clause(phrase, str(phrase), (0, 1), words)
    stream = service.speak(
        clause, speed=1.0, deadline_s=time.perf_counter, scope=CancelScope("load test")
    )
    return sum([len(piece.pcm) / OUT_RATE async for piece in stream])


class Humming:
    """A `Voice` that says the committed phrase of a clause's index."""

    name = "random weights"
    exact_times = False

    def __init__(self, made: RandomVoice) -> None:
        self._made = made

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        sound = self._made.say(self._made.phrases[clause.index].ids).numpy()
        peak = max(1e-9, float(np.abs(sound).max()))
        pcm: Any = np.rint(sound * (16000 / peak)).astype(np.int16)
        yield AudioPiece(pcm, (), True)

    def warm(self) -> None:
        pass


def show(result: Json) -> None:
    for r in result["rows"]:
        how = "graphs" if r["graphs"] else "eager"
        print(
            f"  {r['words']:3} words {how:7} p50 {ms(r['ms'], 'p50'):>7} p99 "
            f"{ms(r['ms'], 'p99'):>7} ms (the first time {r['first_ms']:.0f})"
        )
    for r in result["callers"]:
        print(
            f"  {r['callers']:3} callers, phrase p50 {ms(r['first_ms'], 'p50'):>7} p99 "
            f"{ms(r['first_ms'], 'p99'):>7} ms, {r['sound_s_per_s']:.1f} s of sound a second"
        )
