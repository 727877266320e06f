"""Many calls that are spoken aloud: who hears a hole, in deadline order and in order of arrival.

In virtual time. The decode rate comes first: as many rows as a step holds, nothing but decoding. A
sweep finds the number of calls that asks for 85, 90 and 95 % of it; the middle one is played with
several seeds. `aloud` plays it on the real engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from engine.config import EngineConfig
from engine.text.load import load_text
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms
from loadtest.bench.llm.own import ALONE_THREADS, policy_name
from loadtest.bench.llm.talk import (
    APART_S,
    CYCLE_S,
    SMALLER_APART_S,
    TARGET_S,
    Bursts,
    Ledger,
    Script,
    decode_rate,
)
from loadtest.bench.llm.virtual import Listener, VirtualEngine
from loadtest.bench.llm.voice import SERVICE_S, TOKENS_PER_S, Voice, passages
from loadtest.bench.llm.workload import LONGEST, SHORTEST, SYSTEM, Ask

LOW, WANTED, HIGH = 0.85, 0.9, 0.95
POLICIES = ("deadline", "fcfs")
SECONDS = 120.0
"""That are judged, after `CYCLE_S` in which the calls begin."""
SWEEP_S = 60.0
SEEDS = 5
MAX_SEQS = 512
"""More than there are calls: nobody waits for a place."""
MOST_CALLS = 1024
_DECODE_ROWS, _DECODE_TOKENS = 128, 200


def playback(bench: Bench) -> dict[str, Any]:
    quick = bench.options.quick
    sweep_s, seconds = (15.0, 15.0) if quick else (SWEEP_S, SECONDS)
    rate = virtual_rate(bench)
    swept = sweep(bench, rate, sweep_s)
    calls = wanted(swept)
    seeds = range(1 if quick else SEEDS)
    return about(bench) | {
        "decode_tokens_per_s": rate,
        "seconds": seconds,
        "swept": swept,
        "calls": calls,
        "seeds": [_tried(bench, calls, rate, seconds, seed) for seed in seeds],
        "smaller_bursts": _tried(bench, calls, rate, seconds, apart_s=SMALLER_APART_S),
        "without_bursts": _tried(bench, calls, rate, seconds, apart_s=0.0),
    }


def about(bench: Bench) -> dict[str, Any]:
    """What stands beside the figures."""
    return {
        "threads": policy_name(ALONE_THREADS),
        "shape": (
            f"{SYSTEM} shared prompt tokens, turns of 8-24, replies of {SHORTEST}-{LONGEST} spoken "
            f"at {TOKENS_PER_S:.0f} tokens/s in the prose's clauses, bursts {APART_S:.1f} s apart"
        ),
        "voice_service_ms": 1000 * SERVICE_S,
        "late_ms": 1000 * TARGET_S,
    }


def options(policy: str) -> dict[str, Any]:
    return {
        "scheduling_policy": policy, "max_num_seqs": MAX_SEQS, "max_requests": 2 * MOST_CALLS
    }  # fmt: skip


def rows_of(bench: Bench, config: EngineConfig) -> int:
    """Rows of the longest step that the engine plans."""
    fit = bench.own.warmup(ALONE_THREADS).cost.tokens_within(config.max_step_ms)
    return min(_DECODE_ROWS, max(8, fit))


def _engine(bench: Bench, policy: str) -> VirtualEngine:
    config = bench.own.config(ALONE_THREADS, **options(policy))
    n_blocks = bench.own.parts(ALONE_THREADS).runner.n_blocks
    return VirtualEngine(config, bench.own.warmup(ALONE_THREADS), n_blocks)


def virtual_rate(bench: Bench) -> float:
    engine = _engine(bench, "fcfs")
    n = rows_of(bench, bench.own.config(ALONE_THREADS))
    first, *asks = decoding(bench, n, _DECODE_TOKENS)
    engine.ask(first.prompt, first.n_out)
    engine.run()
    listeners = [engine.ask(ask.prompt, ask.n_out)[1] for ask in asks]
    engine.run()
    return decode_rate([listener.reply.times for listener in listeners])


def decoding(bench: Bench, n: int, n_tokens: int) -> list[Ask]:
    """One that leaves the shared prompt in the cache, and `n` that decode."""
    work = bench.workload(5900)
    system = work.piece(SYSTEM)
    return [Ask(system, 1), *(Ask(system + work.turn(), n_tokens) for _ in range(n))]


def sweep(bench: Bench, rate: float, seconds: float) -> list[dict[str, Any]]:
    """Both policies at numbers of calls whose tokens are 85-95 % of the decode rate."""
    return _tries(bench, rate, seconds, (WANTED, LOW, WANTED, HIGH))


def calls_wanted(bench: Bench, rate: float, seconds: float) -> int:
    """The number of calls in the middle of the range."""
    return wanted(_tries(bench, rate, seconds, (WANTED, WANTED)))


def _tries(
    bench: Bench, rate: float, seconds: float, shares: Sequence[float]
) -> list[dict[str, Any]]:
    """For each share of the rate the number of calls that asks for it, by what the one before it
    asked for; the first is a guess and left out."""
    calls, found = rate / TOKENS_PER_S, 1.0
    tried = []
    for share in shares:
        calls = min(float(MOST_CALLS), max(4.0, calls * share / found))
        tried.append(_tried(bench, round(calls), rate, seconds))
        found = tried[-1]["load"]
    apart = {int(row["calls"]): row for row in tried[1:]}
    return [apart[calls] for calls in sorted(apart)]


def wanted(swept: list[dict[str, Any]]) -> int:
    """The tried number of calls that is nearest to it."""
    nearest = min(swept, key=lambda row: abs(float(row["load"]) - WANTED))
    return int(nearest["calls"])


def _tried(
    bench: Bench,
    calls: int,
    rate: float,
    seconds: float,
    seed: int = 0,
    apart_s: float = APART_S,
) -> dict[str, Any]:
    every = scripts(bench, calls, CYCLE_S + seconds, seed, apart_s)
    rows = {p: _virtual(bench, p, every(), rate, seconds) for p in POLICIES}
    return {"calls": calls, "load": load(rows), "policies": rows}


def load(rows: dict[str, dict[str, Any]]) -> float:
    """Of the decode rate, the policies' mean: calls that wait longer ask for less."""
    return fmean(float(row["load"]) for row in rows.values())


def _virtual(
    bench: Bench, policy: str, calls: list[Script], rate: float, seconds: float
) -> dict[str, Any]:
    engine = _engine(bench, policy)
    ledger = Ledger(CYCLE_S, CYCLE_S + seconds)
    for script in calls:
        engine.later(script.begin_s(), partial(take_turn, engine, script, ledger))
    engine.run(CYCLE_S + seconds)
    return ledger.body(rate)


def scripts(
    bench: Bench, calls: int, lasts_s: float, seed: int, apart_s: float
) -> Callable[[], list[Script]]:
    """What makes the same calls for every policy. seed: besides the run's own."""
    salt = 10_000 * seed
    said = passages(load_text(bench.own.model)[0], bench.tokens, LONGEST)

    def make() -> list[Script]:
        bursts = Bursts(bench.options.seed + salt, lasts_s, apart_s)
        system = bench.workload(5000 + salt).piece(SYSTEM)
        works = ((n, bench.workload(5001 + n)) for n in range(salt, salt + calls))
        return [Script(work, system, said, n, bursts) for n, work in works]

    return make


def take_turn(engine: VirtualEngine, script: Script, ledger: Ledger) -> None:
    prompt, n_out, cuts = script.turn()
    voice = ledger.open(engine.clock.now(), cuts)
    request_id, listener = engine.ask(prompt, n_out)
    _speak(engine, request_id, listener, n_out, voice, ledger)

    def on_end(now: float) -> None:
        heard_s = max(now, voice.dry_at or now)
        engine.later(script.again_s(heard_s), partial(take_turn, engine, script, ledger))

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
        last, told = listener.reply.n_tokens >= n_out, voice.dry_at
        ledger.note(now, n)
        voice.hear(now, n, last=last)
        if voice.dry_at is not None and voice.dry_at != told and not last:
            engine.set_deadline(request_id, voice.dry_at)

    listener.on_tokens = on_tokens


def show(body: dict[str, Any]) -> None:
    header(body)
    print(f"decode rate in virtual time: {body['decode_tokens_per_s']:.0f} tokens/s")
    columns()
    for tried in body["swept"]:
        lines("sweep", tried["calls"], tried["policies"])
    for seed, tried in enumerate(body["seeds"]):
        lines(f"{body['seconds']:.0f} s, seed {seed}", tried["calls"], tried["policies"])
    for key in ("smaller_bursts", "without_bursts"):
        lines(key.replace("_", " "), body["calls"], body[key]["policies"])


def header(body: dict[str, Any]) -> None:
    print(f"{body['threads']}; {body['shape']}; voice {body['voice_service_ms']:.0f} ms a clause")


def columns() -> None:
    print(
        f"{'':34}{'calls':>6}{'load':>6}{'turns':>7}{'underruns':>11}{'silent s':>10}{'late':>6}"
        f"{'tok/s':>8}{'first sound p50':>17}{'p95':>8}{'p99':>8}"
    )


def lines(name: str, calls: int, rows: dict[str, dict[str, Any]]) -> None:
    for policy, row in rows.items():
        first = row["first_sound_ms"]
        print(
            f"{f'{name}, {policy}':34}{calls:6}{100 * row['load']:5.0f}%{row['turns']:7}"
            f"{row['underruns']:11}{row['silent_s']:10.1f}{row['late']:6}"
            f"{row['tokens_per_s']:8.1f}{ms(first, 'p50'):>17}{ms(first, 'p95'):>8}"
            f"{ms(first, 'p99'):>8}"
        )
