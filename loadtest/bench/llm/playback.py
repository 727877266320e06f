"""Many calls that are spoken aloud: who hears a hole, in deadline order and in order of arrival.

The decode rate is measured first: as many rows as a step holds, nothing but decoding. A sweep in
virtual time finds the number of calls that asks for 85-95 % of the rate which the same engine has
there; scaled to the rate measured, it is played on the real engine, and once more with a
corrected number if the load came out elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from engine.client import Engine
from engine.config import EngineConfig
from engine.sampling import SamplingParams
from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms
from loadtest.bench.llm.own import ALONE_THREADS, policy_name
from loadtest.bench.llm.talk import (
    APART_S,
    CYCLE_S,
    TARGET_S,
    Bursts,
    Ledger,
    Script,
    decode_rate,
)
from loadtest.bench.llm.virtual import Listener, VirtualEngine
from loadtest.bench.llm.voice import SERVICE_S, TOKENS_PER_S, Voice
from loadtest.bench.llm.workload import LONGEST, SHORTEST, SYSTEM, Ask

LOW, WANTED, HIGH = 0.85, 0.92, 0.95
POLICIES = ("deadline", "fcfs")
SWEEP_S, VIRTUAL_S, REAL_S = 120.0, 600.0, 180.0
"""Seconds that are judged, after `CYCLE_S` in which the calls begin."""
MAX_SEQS = 256
_DECODE_ROWS, _DECODE_TOKENS = 128, 200
_MOST_CALLS = 1024


def playback(bench: Bench) -> dict[str, Any]:
    quick = bench.options.quick
    sweep_s, virtual_s = (15.0, 15.0) if quick else (SWEEP_S, VIRTUAL_S)
    rate = _virtual_rate(bench)
    swept = _sweep(bench, rate, sweep_s)
    calls = int(_nearest(swept)["calls"])
    body = {
        "threads": policy_name(ALONE_THREADS),
        "shape": (
            f"{SYSTEM} shared prompt tokens, turns of 8-24, replies of {SHORTEST}-{LONGEST} spoken "
            f"at {TOKENS_PER_S:.0f} tokens/s, bursts {APART_S:.1f} s apart"
        ),
        "voice_service_ms": 1000 * SERVICE_S,
        "late_ms": 1000 * TARGET_S,
        "virtual_decode_tokens_per_s": rate,
        "virtual_seconds": virtual_s,
        "swept": swept,
        "virtual": _tried(bench, calls, rate, virtual_s),
        "virtual_without_bursts": _tried(bench, calls, rate, virtual_s, 0.0),
    }
    return body | _measured(bench, calls / rate)


def _measured(bench: Bench, calls_per_rate: float) -> dict[str, Any]:
    quick = bench.options.quick
    with bench.own.open(ALONE_THREADS, **_options("fcfs")) as engine:
        n, n_tokens = (4, 24) if quick else (_rows(bench, engine.config), _DECODE_TOKENS)
        rate = b.run(partial(_real_rate, bench, engine, n, n_tokens))
    calls, seconds = (4, 3.0) if quick else (round(calls_per_rate * rate), REAL_S)
    rows = _played(bench, calls, rate, seconds)
    load = rows["fcfs"]["load"]
    if not quick and not LOW <= load <= HIGH:
        calls = round(calls * WANTED / load)
        rows = _played(bench, calls, rate, seconds)
    ratio = rows["deadline"]["tokens_per_s"] / max(rows["fcfs"]["tokens_per_s"], 1e-9)
    return {
        "decode_rows": n,
        "decode_tokens_per_s": rate,
        "calls": calls,
        "seconds": seconds,
        "measured": rows,
        "goals": {
            "load_within": LOW <= rows["fcfs"]["load"] <= HIGH,
            "deadline_underruns": rows["deadline"]["underruns"],
            "fcfs_underruns": rows["fcfs"]["underruns"],
            "throughput_of_deadline_over_fcfs": ratio,
        },
    }


def _options(policy: str) -> dict[str, Any]:
    return {
        "scheduling_policy": policy, "max_num_seqs": MAX_SEQS, "max_requests": 2 * _MOST_CALLS
    }  # fmt: skip


def _rows(bench: Bench, config: EngineConfig) -> int:
    """Rows of the longest step that the engine plans."""
    fit = bench.own.warmup(ALONE_THREADS).cost.tokens_within(config.max_step_ms)
    return min(_DECODE_ROWS, max(8, fit))


# virtual time


def _engine(bench: Bench, policy: str) -> VirtualEngine:
    config = bench.own.config(ALONE_THREADS, **_options(policy))
    n_blocks = bench.own.parts(ALONE_THREADS).runner.n_blocks
    return VirtualEngine(config, bench.own.warmup(ALONE_THREADS), n_blocks)


def _virtual_rate(bench: Bench) -> float:
    engine = _engine(bench, "fcfs")
    n = _rows(bench, bench.own.config(ALONE_THREADS))
    first, *asks = _decoding(bench, n, _DECODE_TOKENS)
    engine.ask(first.prompt, first.n_out)
    engine.run()
    listeners = [engine.ask(ask.prompt, ask.n_out)[1] for ask in asks]
    engine.run()
    return decode_rate([listener.reply.times for listener in listeners])


def _decoding(bench: Bench, n: int, n_tokens: int) -> list[Ask]:
    """One that leaves the shared prompt in the cache, and `n` that decode."""
    work = bench.workload(5900)
    system = work.piece(SYSTEM)
    return [Ask(system, 1), *(Ask(system + work.turn(), n_tokens) for _ in range(n))]


def _sweep(bench: Bench, rate: float, seconds: float) -> list[dict[str, Any]]:
    """Both policies at numbers of calls whose tokens are 85-95 % of the decode rate."""
    calls, load = rate / TOKENS_PER_S, 1.0
    tried = []
    for wanted in (WANTED, LOW, WANTED, HIGH):
        calls = min(float(_MOST_CALLS), max(4.0, calls * wanted / load))
        tried.append(_tried(bench, round(calls), rate, seconds))
        load = tried[-1]["load"]
    apart = {int(row["calls"]): row for row in tried[1:]}
    return [apart[calls] for calls in sorted(apart)]


def _tried(
    bench: Bench, calls: int, rate: float, seconds: float, apart_s: float = APART_S
) -> dict[str, Any]:
    rows = {p: _virtual(bench, p, calls, rate, seconds, apart_s) for p in POLICIES}
    return {"calls": calls, "load": rows["fcfs"]["load"], "policies": rows}


def _nearest(tried: list[dict[str, Any]]) -> dict[str, Any]:
    return min(tried, key=lambda row: abs(float(row["load"]) - WANTED))


def _virtual(
    bench: Bench, policy: str, calls: int, rate: float, seconds: float, apart_s: float = APART_S
) -> dict[str, Any]:
    engine = _engine(bench, policy)
    ledger = Ledger(CYCLE_S, CYCLE_S + seconds)
    for script in _scripts(bench, calls, CYCLE_S + seconds, apart_s):
        engine.later(script.begin_s(), partial(_take_turn, engine, script, ledger))
    engine.run(CYCLE_S + seconds)
    return ledger.body(rate)


def _scripts(bench: Bench, calls: int, lasts_s: float, apart_s: float) -> list[Script]:
    bursts = Bursts(bench.options.seed, lasts_s, apart_s)
    system = bench.workload(5000).piece(SYSTEM)
    return [Script(bench.workload(5001 + n), system, n, bursts) for n in range(calls)]


def _take_turn(engine: VirtualEngine, script: Script, ledger: Ledger) -> None:
    voice = ledger.open(engine.clock.now())
    prompt, n_out = script.turn()
    request_id, listener = engine.ask(prompt, n_out)
    _speak(engine, request_id, listener, n_out, voice, ledger)

    def on_end(now: float) -> None:
        heard_s = max(now, voice.dry_at or now)
        engine.later(script.again_s(heard_s), partial(_take_turn, engine, script, ledger))

    listener.on_end = on_end


def _speak(
    engine: VirtualEngine,
    request_id: int,
    listener: Listener,
    n_out: int,
    voice: Voice,
    ledger: Ledger,
) -> None:
    def on_tokens(now: float, n: int) -> None:
        last = listener.reply.n_tokens >= n_out
        ledger.note(now, n)
        voice.hear(now, n, last=last)
        if voice.dry_at is not None and not last:
            engine.set_deadline(request_id, voice.dry_at)

    listener.on_tokens = on_tokens


# the real engine


async def _real_rate(bench: Bench, engine: Engine, n: int, n_tokens: int) -> float:
    async def times_of(ask: Ask) -> list[float]:
        times: list[float] = []
        params = SamplingParams(max_tokens=ask.n_out, ignore_eos=True)
        async for delta in engine.submit(ask.prompt, params):
            times += [time.monotonic()] * len(delta.token_ids)
        return times

    first, *asks = _decoding(bench, n, n_tokens)
    await times_of(first)
    return decode_rate(await asyncio.gather(*(times_of(ask) for ask in asks)))


def _played(bench: Bench, calls: int, rate: float, seconds: float) -> dict[str, Any]:
    rows = {}
    for policy in POLICIES[::-1]:
        with bench.own.open(ALONE_THREADS, **_options(policy)) as engine:
            ledger = b.run(partial(_really, bench, engine, calls, seconds))
            stats = engine.stats()
        rows[policy] = ledger.body(rate) | {
            "step_ms_p50": stats.step_ms_p50,
            "step_ms_max": stats.step_ms_max,
            "preemptions": stats.preemptions_total,
        }
    return rows


async def _really(bench: Bench, engine: Engine, calls: int, seconds: float) -> Ledger:
    begin_s = time.monotonic()
    ramp_s = 0.0 if bench.options.quick else CYCLE_S
    end_s = begin_s + ramp_s + seconds
    ledger = Ledger(begin_s + ramp_s, end_s)
    apart_s = APART_S if ramp_s else 0.0
    async with asyncio.TaskGroup() as group:
        for script in _scripts(bench, calls, ramp_s + seconds, apart_s):
            wait_s = script.begin_s() if ramp_s else 0.0
            group.create_task(_call(engine, script, ledger, begin_s, wait_s, end_s))
    return ledger


async def _call(
    engine: Engine, script: Script, ledger: Ledger, begin_s: float, wait_s: float, end_s: float
) -> None:
    """wait_s, and what the script knows, count from `begin_s`."""
    while (turn_s := begin_s + wait_s) < end_s:
        await asyncio.sleep(turn_s - time.monotonic())
        now = time.monotonic()
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
        wait_s = script.again_s(max(now, voice.dry_at or now) - begin_s)


def show(body: dict[str, Any]) -> None:
    print(f"{body['threads']}; {body['shape']}; voice {body['voice_service_ms']:.0f} ms a clause")
    print(
        f"decode rate: measured {body['decode_tokens_per_s']:.0f} tokens/s with "
        f"{body['decode_rows']} rows, in virtual time {body['virtual_decode_tokens_per_s']:.0f}"
    )
    print(
        f"{'':34}{'calls':>6}{'load':>6}{'turns':>7}{'underruns':>11}{'silent s':>10}{'late':>6}"
        f"{'tok/s':>8}{'first sound p50':>17}{'p95':>8}{'p99':>8}"
    )
    for tried in body["swept"]:
        _lines("sweep", tried["calls"], tried["policies"])
    length = f"virtual, {body['virtual_seconds']:.0f} s"
    for name, key in ((length, "virtual"), (f"{length}, no bursts", "virtual_without_bursts")):
        _lines(name, body[key]["calls"], body[key]["policies"])
    _lines(f"measured, {body['seconds']:.0f} s", body["calls"], body["measured"])
    goals = body["goals"]
    print(
        f"  measured: {goals['deadline_underruns']} underruns by deadline, "
        f"{goals['fcfs_underruns']} by arrival; throughput "
        f"{goals['throughput_of_deadline_over_fcfs']:.3f} of it"
        + ("" if goals["load_within"] else f"; the load is not within {LOW:.0%}-{HIGH:.0%}")
    )


def _lines(name: str, calls: int, rows: dict[str, dict[str, Any]]) -> None:
    for policy, row in rows.items():
        first = row["first_sound_ms"]
        print(
            f"{f'{name}, {policy}':34}{calls:6}{100 * row['load']:5.0f}%{row['turns']:7}"
            f"{row['underruns']:11}{row['silent_s']:10.1f}{row['late']:6}"
            f"{row['tokens_per_s']:8.1f}{ms(first, 'p50'):>17}{ms(first, 'p95'):>8}"
            f"{ms(first, 'p99'):>8}"
        )
