"""`playback` on the real engine: as many calls for its decode rate as virtual time found.

The decode rate is measured first. If the load came out elsewhere than at 85-95 % of it, both
policies are played once more with a corrected number of calls.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from engine.client import Engine
from engine.sampling import SamplingParams
from loadtest.bench.llm import bench as b
from loadtest.bench.llm import playback as p
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.own import ALONE_THREADS
from loadtest.bench.llm.playback import HIGH, LOW, POLICIES, WANTED, decoding
from loadtest.bench.llm.talk import APART_S, CYCLE_S, Ledger, Script, decode_rate
from loadtest.bench.llm.workload import Ask

SECONDS = 60.0
"""That are judged, after `CYCLE_S` in which the calls begin."""
_DECODE_TOKENS = 200


def aloud(bench: Bench) -> dict[str, Any]:
    quick = bench.options.quick
    calls_per_rate = 0.0 if quick else _calls_per_rate(bench)
    with bench.own.open(ALONE_THREADS, **p.options("fcfs")) as engine:
        n, n_tokens = (4, 24) if quick else (p.rows_of(bench, engine.config), _DECODE_TOKENS)
        rate = b.run(partial(_rate, bench, engine, n, n_tokens))
    calls, seconds = (4, 3.0) if quick else (round(calls_per_rate * rate), SECONDS)
    rows = _played(bench, calls, rate, seconds)
    if not quick and not LOW <= p.load(rows) <= HIGH:
        calls = round(calls * WANTED / p.load(rows))
        rows = _played(bench, calls, rate, seconds)
    ratio = rows["deadline"]["all_tokens"] / max(rows["fcfs"]["all_tokens"], 1)
    return p.about(bench) | {
        "decode_rows": n,
        "decode_tokens_per_s": rate,
        "calls": calls,
        "seconds": seconds,
        "measured": rows,
        "goals": {
            "load_within": LOW <= p.load(rows) <= HIGH,
            "deadline_underruns": rows["deadline"]["underruns"],
            "fcfs_underruns": rows["fcfs"]["underruns"],
            "throughput_of_deadline_over_fcfs": ratio,
        },
    }


def _calls_per_rate(bench: Bench) -> float:
    rate = p.virtual_rate(bench)
    return p.calls_wanted(bench, rate, SECONDS) / rate


def _played(bench: Bench, calls: int, rate: float, seconds: float) -> dict[str, Any]:
    ramp_s = 0.0 if bench.options.quick else CYCLE_S
    make = p.scripts(bench, calls, ramp_s + seconds, 0, APART_S if ramp_s else 0.0)
    rows = {}
    for policy in POLICIES[::-1]:
        with bench.own.open(ALONE_THREADS, **p.options(policy)) as engine:
            ledger = b.run(partial(_talk, engine, make(), ramp_s, seconds))
            stats = engine.stats()
        rows[policy] = ledger.body(rate) | {
            "step_ms_p50": stats.step_ms_p50,
            "step_ms_max": stats.step_ms_max,
            "preemptions": stats.preemptions_total,
        }
        p.lines(f"played, {rows[policy]['all_tokens']} tokens", calls, {policy: rows[policy]})
    return rows


async def _rate(bench: Bench, engine: Engine, n: int, n_tokens: int) -> float:
    async def times_of(ask: Ask) -> list[float]:
        times: list[float] = []
        params = SamplingParams(max_tokens=ask.n_out, ignore_eos=True)
        async for delta in engine.submit(ask.prompt, params):
            times += [time.monotonic()] * len(delta.token_ids)
        return times

    first, *asks = decoding(bench, n, n_tokens)
    await times_of(first)
    return decode_rate(await asyncio.gather(*(times_of(ask) for ask in asks)))


async def _talk(engine: Engine, calls: list[Script], ramp_s: float, seconds: float) -> Ledger:
    begin_s = time.monotonic()
    end_s = begin_s + ramp_s + seconds
    ledger = Ledger(begin_s + ramp_s, end_s)
    async with asyncio.TaskGroup() as group:
        for script in calls:
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
        prompt, n_out, cuts = script.turn()
        voice, got = ledger.open(now, cuts), 0
        generation = engine.submit(prompt, SamplingParams(max_tokens=n_out, ignore_eos=True))
        async for delta in generation:
            now = time.monotonic()
            if now > end_s:
                generation.abort()
                break
            got, told = got + len(delta.token_ids), voice.dry_at
            ledger.note(now, len(delta.token_ids))
            voice.hear(now, len(delta.token_ids), last=got >= n_out)
            if voice.dry_at is not None and voice.dry_at != told:
                generation.set_deadline(voice.dry_at)
        wait_s = script.again_s(max(now, voice.dry_at or now) - begin_s)


def show(body: dict[str, Any]) -> None:
    p.header(body)
    print(
        f"decode rate: {body['decode_tokens_per_s']:.0f} tokens/s with {body['decode_rows']} rows"
    )
    p.columns()
    p.lines(f"measured, {body['seconds']:.0f} s", body["calls"], body["measured"])
    for policy, row in body["measured"].items():
        print(f"  {policy}: steps p50 {row['step_ms_p50']:.1f}, max {row['step_ms_max']:.0f} ms")
    goals = body["goals"]
    print(
        f"  {goals['deadline_underruns']} underruns by deadline, {goals['fcfs_underruns']} by "
        f"arrival; throughput {goals['throughput_of_deadline_over_fcfs']:.3f} of it"
        + ("" if goals["load_within"] else f"; the load is not within {LOW:.0%}-{HIGH:.0%}")
    )
