"""Many calls that are spoken aloud: who hears a hole, in deadline order and in order of arrival.

A call takes turn after turn: a short prompt, a reply of 20-300 tokens that becomes clauses and
sound, then a pause as long as somebody speaks. The number of calls is found by a sweep in virtual
time: `fcfs` makes 85-95 % of the tokens per second that it makes of far too many calls. Then the
same calls are played on the real engine.
"""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import Any

from engine.client import Engine
from engine.sampling import SamplingParams
from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms, tail
from loadtest.bench.llm.own import ALONE_THREADS, policy_name
from loadtest.bench.llm.virtual import VirtualEngine
from loadtest.bench.llm.voice import SERVICE_S, Voice
from loadtest.bench.llm.workload import LONGEST, SHORTEST, SYSTEM, Workload

LOW, HIGH = 0.85, 0.95
POLICIES = ("deadline", "fcfs")
TOO_MANY = 512
"""Calls that keep every step as full as it can be."""
PAUSE_S = (1.0, 3.0)
TARGET_S = 0.6 + SERVICE_S
"""A first sound later than this is late: the deadline of a request that names none, and the voice's
time."""
VIRTUAL_S, REAL_S = 120.0, 40.0
WARM_UP_S = 10.0
"""Start of a run that is not judged: all calls begin within it."""


class Script:
    """What one call says and when; the same for every policy."""

    def __init__(self, work: Workload, system: tuple[int, ...], seed: int) -> None:
        self._work = work
        self._system = system
        self._rng = random.Random(seed)

    def begin_s(self) -> float:
        return self._rng.uniform(0.0, WARM_UP_S)

    def turn(self) -> tuple[tuple[int, ...], int]:
        """(prompt, tokens of the reply)."""
        n_out = self._rng.randint(SHORTEST, LONGEST)
        return self._system + self._work.turn(), n_out

    def pause_s(self) -> float:
        return self._rng.uniform(*PAUSE_S)


class Ledger:
    """What all calls of a run add up to, once `WARM_UP_S` is over."""

    def __init__(self, judged_from_s: float) -> None:
        self.tokens = 0
        self._from_s = judged_from_s
        self._turns: list[tuple[float, Voice]] = []

    def open(self, asked_s: float) -> Voice:
        voice = Voice()
        if asked_s >= self._from_s:
            self._turns.append((asked_s, voice))
        return voice

    def note(self, now: float, n_tokens: int) -> None:
        if now >= self._from_s:
            self.tokens += n_tokens

    def body(self, seconds: float) -> dict[str, Any]:
        first = [
            1000 * (voice.started_s - asked_s)
            for asked_s, voice in self._turns
            if voice.started_s is not None
        ]
        return {
            "turns": len(self._turns),
            "underruns": sum(voice.underruns for _, voice in self._turns),
            "late": sum(start > 1000 * TARGET_S for start in first),
            "silent_s": sum(voice.dry_s for _, voice in self._turns),
            "tokens_per_s": self.tokens / seconds,
            "first_sound_ms": tail(first),
        }


def playback(bench: Bench) -> dict[str, Any]:
    quick = bench.options.quick
    seconds = 15.0 if quick else VIRTUAL_S
    capacity = _virtual(bench, "fcfs", TOO_MANY, seconds)["tokens_per_s"]
    tried = _sweep(bench, capacity, seconds)
    calls = _choose(tried)
    real = {}
    for policy in POLICIES:
        n, lasts = (4, 3.0) if quick else (calls, REAL_S)
        options = _options(policy)
        with bench.own.open(ALONE_THREADS, **options) as engine:
            real[policy] = b.run(partial(_really, bench, engine, n, lasts))
    return {
        "threads": policy_name(ALONE_THREADS),
        "capacity_tokens_per_s": capacity,
        "calls": calls,
        "voice_service_ms": 1000 * SERVICE_S,
        "virtual": tried,
        "measured": real,
    }


def _options(policy: str) -> dict[str, Any]:
    return {"scheduling_policy": policy, "max_num_seqs": 256, "max_requests": 1024}


def _sweep(bench: Bench, capacity: float, seconds: float) -> list[dict[str, Any]]:
    """Both policies at numbers of calls that make 85-95 % of the capacity, and at one beyond."""
    tried: list[dict[str, Any]] = []
    low, high = 4, TOO_MANY
    while high - low > 8:  # the smallest number that reaches LOW
        middle = (low + high) // 2
        load = _virtual(bench, "fcfs", middle, seconds / 2)["tokens_per_s"] / capacity
        low, high = (low, middle) if load >= LOW else (middle, high)
    calls = high
    most = 2 if bench.options.quick else 6
    while not tried or (len(tried) < most and calls < TOO_MANY):
        rows = {policy: _virtual(bench, policy, calls, seconds) for policy in POLICIES}
        load = rows["fcfs"]["tokens_per_s"] / capacity
        tried.append({"calls": calls, "load": load, "policies": rows})
        if load > HIGH:
            break
        calls += max(2, calls // 20)
    return tried


def _choose(tried: list[dict[str, Any]]) -> int:
    """Within the wanted load, where order of arrival makes the most holes."""
    within = [row for row in tried if LOW <= row["load"] <= HIGH] or tried
    return int(max(within, key=lambda row: row["policies"]["fcfs"]["underruns"])["calls"])


def _virtual(bench: Bench, policy: str, calls: int, seconds: float) -> dict[str, Any]:
    config = bench.own.config(ALONE_THREADS, **_options(policy))
    parts = bench.own.parts(ALONE_THREADS)
    warmup = bench.own.warmup(ALONE_THREADS)
    engine = VirtualEngine(config, warmup, parts.runner.n_blocks)
    work, ledger = bench.workload(5000), Ledger(WARM_UP_S)
    system = work.piece(SYSTEM)
    for number in range(calls):
        script = Script(work, system, number)
        engine.later(script.begin_s(), partial(_take_turn, engine, script, ledger))
    engine.run(WARM_UP_S + seconds)
    return ledger.body(engine.clock.now() - WARM_UP_S)


def _take_turn(engine: VirtualEngine, script: Script, ledger: Ledger) -> None:
    voice = ledger.open(engine.clock.now())
    prompt, n_out = script.turn()
    request_id, listener = engine.ask(prompt, n_out)

    def on_tokens(now: float, n: int) -> None:
        last = listener.reply.n_tokens >= n_out
        ledger.note(now, n)
        voice.hear(now, n, last=last)
        if voice.dry_at is not None and not last:
            engine.set_deadline(request_id, voice.dry_at)

    def on_end(now: float) -> None:
        heard_s = max(now, voice.dry_at or now)
        engine.later(heard_s + script.pause_s(), lambda: _take_turn(engine, script, ledger))

    listener.on_tokens, listener.on_end = on_tokens, on_end


async def _really(bench: Bench, engine: Engine, calls: int, seconds: float) -> dict[str, Any]:
    """Judged from `WARM_UP_S` on, for `seconds`."""
    work = bench.workload(5000)
    system = work.piece(SYSTEM)
    begin_s = time.monotonic()
    warm_up_s = WARM_UP_S if seconds > WARM_UP_S else 0.0
    ledger = Ledger(begin_s + warm_up_s)
    end_s = begin_s + warm_up_s + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(calls):
            script = Script(work, system, number)
            wait_s = script.begin_s() * (warm_up_s > 0)
            group.create_task(_call(engine, script, ledger, wait_s, end_s))
    return ledger.body(seconds)


async def _call(
    engine: Engine, script: Script, ledger: Ledger, wait_s: float, end_s: float
) -> None:
    await asyncio.sleep(wait_s)
    while (now := time.monotonic()) < end_s:
        voice, got = ledger.open(now), 0
        prompt, n_out = script.turn()
        generation = engine.submit(prompt, SamplingParams(max_tokens=n_out, ignore_eos=True))
        async for delta in generation:
            now = time.monotonic()
            if now > end_s:
                generation.abort()
                break
            got += len(delta.token_ids)
            ledger.note(now, len(delta.token_ids))
            voice.hear(now, len(delta.token_ids), last=got >= n_out)
            if voice.dry_at is not None:
                generation.set_deadline(voice.dry_at)
        quiet_s = max(0.0, (voice.dry_at or 0.0) - now) + script.pause_s()
        await asyncio.sleep(min(quiet_s, max(0.0, end_s - now)))


def show(body: dict[str, Any]) -> None:
    print(
        f"{body['threads']}, voice {body['voice_service_ms']:.0f} ms a clause; far too many calls "
        f"make {body['capacity_tokens_per_s']:.0f} tokens/s"
    )
    print(
        f"{'':20}{'calls':>6}{'load':>6}{'turns':>7}{'underruns':>11}{'silent s':>10}{'late':>6}"
        f"{'tok/s':>8}{'first sound p50':>17}{'p95':>8}"
    )
    for tried in body["virtual"]:
        for policy, row in tried["policies"].items():
            _line(f"virtual, {policy}", tried["calls"], f"{100 * tried['load']:.0f} %", row)
    for policy, row in body["measured"].items():
        _line(f"measured, {policy}", body["calls"], "", row)
    rows = body["measured"]
    ratio = rows["deadline"]["tokens_per_s"] / max(rows["fcfs"]["tokens_per_s"], 1e-9)
    print(f"  measured: throughput of deadline / fcfs {ratio:.3f}")


def _line(name: str, calls: int, load: str, row: dict[str, Any]) -> None:
    first = row["first_sound_ms"]
    print(
        f"{name:20}{calls:6}{load:>6}{row['turns']:7}{row['underruns']:11}{row['silent_s']:10.1f}"
        f"{row['late']:6}{row['tokens_per_s']:8.1f}{ms(first, 'p50'):>17}{ms(first, 'p95'):>8}"
    )
