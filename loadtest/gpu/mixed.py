"""Recognition, engine and voice on one GPU: each alone and all together, at the same rates."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from loadtest.bench.llm.measure import ms, tail
from loadtest.gpu.bench import Bench, Json, Skipped
from loadtest.gpu.engine import load, talk
from loadtest.gpu.models import LLAMA_8B, RandomVoice
from loadtest.gpu.recognition import recogniser
from loadtest.gpu.voice import spent_ms

CALLS = 32
PHRASES_A_S = 8.0
"""32 calls, each a phrase of two seconds every four."""
PASSES_A_S = 8.0
"""32 calls, each a partial or a final every four seconds."""


def mixed(bench: Bench) -> Json:
    """32 callers of an 8B engine; phrases and passes come at random times."""
    loaded = load(bench, LLAMA_8B, blocks=6000)
    made = RandomVoice(bench)
    phrases = made.phrases[: bench.pick(3, 1)]
    kinds: dict[str, tuple[Callable[[int], object], float]] = {
        "voice": (lambda i: made.say(phrases[i % len(phrases)].ids), PHRASES_A_S)
    }
    how = "left out"
    try:
        how, once = recogniser(bench, "base")
        kinds["recognition"] = (lambda i: once(), PASSES_A_S)
    except Skipped:
        pass
    for work, _ in kinds.values():
        work(0)
    n, seconds = bench.pick(CALLS, 2), bench.pick(6.0, 0.4)
    found: Json = {"calls": n, "recogniser": how, "alone": {}, "together": {}}
    with loaded.engine(bench) as engine:
        asyncio.run(talk(engine, n, 0.5, bench, 90))
        for name, kind in kinds.items():
            with_company = Stages({name: kind}, bench.seed)
            time.sleep(seconds)
            found["alone"] |= with_company.stop()
        found["alone"]["engine"] = _gaps(asyncio.run(talk(engine, n, seconds, bench, 91)))
        stages = Stages(kinds, bench.seed)
        found["together"]["engine"] = _gaps(asyncio.run(talk(engine, n, seconds, bench, 92)))
        found["together"] |= stages.stop()
    return found


def _gaps(row: Json) -> Json:
    kept = ("ttft_ms", "gap_ms", "cached_ttft_ms", "tokens_per_s", "n_failed")
    return {name: row[name] for name in kept}


class Stages:
    """One thread per stage, like the server's; jobs arrive as a Poisson stream and wait in turn.

    A job's time counts from its arrival.
    """

    def __init__(self, kinds: dict[str, tuple[Callable[[int], object], float]], seed: int) -> None:
        self._over = threading.Event()
        self._waits: dict[str, list[float]] = {name: [] for name in kinds}
        self._service: dict[str, list[float]] = {name: [] for name in kinds}
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, args=(name, *kind, seed + i), daemon=True)
            for i, (name, kind) in enumerate(kinds.items())
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, name: str, job: Callable[[int], object], rate: float, seed: int) -> None:
        rng, i = np.random.default_rng(seed), 0
        due_s = time.perf_counter()
        try:
            while not self._over.is_set():
                due_s += float(rng.exponential(1 / rate))
                if self._over.wait(max(0.0, due_s - time.perf_counter())):
                    return
                self._service[name].append(spent_ms(lambda i=i: job(i)))  # type: ignore[misc]
                self._waits[name].append(1000 * (time.perf_counter() - due_s))
                i += 1
        except Exception as error:
            self._errors.append(error)

    def stop(self) -> dict[str, Any]:
        """Times of every stage. Raises what a stage raised."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return {
            name: {"ms": tail(self._service[name]), "from_arrival_ms": tail(self._waits[name])}
            for name in self._waits
        }


def show(result: Json) -> None:
    print(f"{result['calls']} calls of the 8B shape; recogniser: {result['recogniser']}")
    for when in ("alone", "together"):
        for name, r in result[when].items():
            if name == "engine":
                print(
                    f"  {when:9}{name:12} TTFT p50 {ms(r['ttft_ms'], 'p50')} p99 "
                    f"{ms(r['ttft_ms'], 'p99')} ms, gap p50 {ms(r['gap_ms'], 'p50')} p99 "
                    f"{ms(r['gap_ms'], 'p99')} ms, {r['tokens_per_s']:.0f} tokens/s"
                )
            else:
                print(
                    f"  {when:9}{name:12} p50 {ms(r['ms'], 'p50')} p99 {ms(r['ms'], 'p99')} ms, "
                    f"from arrival p99 {ms(r['from_arrival_ms'], 'p99')} ms"
                )
