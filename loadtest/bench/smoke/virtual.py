"""The engine's loop, scheduler and cache in virtual time, with step times that are written here.

Everything is a function of the code alone: counts have no slack, ratios two percent, so that a
change of no consequence needs no new baseline.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine.budget import fit
from engine.config import EngineConfig
from engine.warmup import WarmupReport
from loadtest.bench.llm.measure import Reply, pooled, summary
from loadtest.bench.llm.playback import take_turn
from loadtest.bench.llm.talk import APART_S, CYCLE_S, Bursts, Ledger, Script
from loadtest.bench.llm.virtual import Listener, VirtualEngine
from loadtest.bench.llm.voice import Voice
from loadtest.bench.llm.workload import LONGEST, PREFIX, SYSTEM, Ask, Workload

from .figures import Better, Figure

_DECODE = ((1, 4.8), (4, 6.6), (8, 8.3), (16, 13.9), (32, 25.6), (64, 49.0))
_PREFILL = ((16, 11.0), (64, 33.0), (128, 62.0), (256, 122.0))
STEPS = WarmupReport(fit([*_DECODE, *_PREFILL]), _DECODE, _PREFILL, 0.0)
"""Milliseconds of a step over so many rows, and over so many prompt tokens: a small model on two
cores, in round numbers. Only what is made of them in one run is compared."""
N_BLOCKS = 4096
BURST = 32
TALKING = 290
"""Calls whose speech asks for some 90 % of what these steps can decode."""
SECONDS = 15.0
_FIRST_CLAUSE, _CLAUSE = (4, 17), (3, 33)
"""Tokens of clauses, fewest and most: what the benchmark's prose has."""
SPEAKING, NEWCOMERS = 8, 20
LITTLE = 0.02


def figures() -> list[Figure]:
    return [*batching(), *speech(), *newcomers(), *prefixes(), *cancel()]


def engine(n_blocks: int = N_BLOCKS, **options: Any) -> VirtualEngine:
    defaults: dict[str, Any] = {"max_num_seqs": 64, "max_requests": 4096, "max_model_len": 1024}
    return VirtualEngine(EngineConfig(Path("none"), **(defaults | options)), STEPS, n_blocks)


def workload(salt: int) -> Workload:
    return Workload(range(1, 4000), salt)


def batching() -> list[Figure]:
    """32 calls in bursts, continuous batching beside static: how many times better."""
    seen: dict[str, Any] = {}
    for batching in ("static", "continuous"):
        rounds: list[list[Reply]] = []
        for salt in range(4):
            own = engine(batching=batching, max_num_seqs=BURST)
            rounds.append(_play(own, workload(salt).spoken(BURST)))
        seen[batching] = pooled(rounds)
    old, new = seen["static"], seen["continuous"]

    def times(what: str) -> float:
        return float(old[what]["p99"]) / float(new[what]["p99"])

    return [
        Figure("virtual.first_text_p99_over_static", times("ttft_ms"), Better.HIGHER, LITTLE),
        Figure(
            "virtual.ms_per_token_p99_over_static", times("normalised_ms"), Better.HIGHER, LITTLE
        ),
        Figure(
            "virtual.tokens_per_s_over_static",
            float(new["tokens_per_s"]) / float(old["tokens_per_s"]),
            Better.HIGHER,
            LITTLE,
        ),
    ]


def speech() -> list[Figure]:
    """Many calls spoken aloud: holes in the sound, and first sounds that come late."""
    rows = {policy: _talk(policy) for policy in ("deadline", "fcfs")}
    holes = {policy: float(row["underruns"]) for policy, row in rows.items()}
    return [
        Figure("virtual.holes_deadline", holes["deadline"], Better.LOWER),
        Figure(
            "virtual.holes_fcfs_less_deadline", holes["fcfs"] - holes["deadline"], Better.HIGHER
        ),
        Figure("virtual.late_first_sounds", float(rows["deadline"]["late"]), Better.LOWER),
    ]


def _talk(policy: str) -> dict[str, Any]:
    own = engine(N_BLOCKS * 2, scheduling_policy=policy, max_num_seqs=512)
    ledger = Ledger(CYCLE_S, CYCLE_S + SECONDS)
    bursts = Bursts(1, CYCLE_S + SECONDS, APART_S)
    system, said = workload(500).piece(SYSTEM), _passages()
    for n in range(TALKING):
        script = Script(workload(501 + n), system, said, n, bursts)
        own.later(script.begin_s(), partial(take_turn, own, script, ledger))
    own.run(CYCLE_S + SECONDS)
    return ledger.body(1.0)


def _passages() -> list[tuple[int, ...]]:
    """Tokens of each clause of what may be said."""
    rng = random.Random(1)
    return [
        (rng.randint(*_FIRST_CLAUSE), *(rng.randint(*_CLAUSE) for _ in range(24)))
        for _ in range(40)
    ]


def newcomers() -> list[Figure]:
    """Twenty callers arrive in one step while eight speak."""
    own = engine()
    work, voices = workload(600), [Voice() for _ in range(SPEAKING)]
    for voice in voices:
        request, listener = own.ask(work.piece(40), 120)
        listener.on_tokens = _spoken(own, request, listener, voice, 120)
    came: list[Listener] = []
    for _ in range(NEWCOMERS):
        own.later(2.0, partial(_ask, own, Ask(work.unique(SYSTEM), 20), came))
    own.run()
    first = [listener.reply.ttft_s or 0.0 for listener in came]
    cold_s = STEPS.predict_prefill_ms(SYSTEM) / 1000
    return [
        Figure(
            "virtual.holes_of_8_speakers_when_20_arrive",
            float(sum(voice.underruns for voice in voices)),
            Better.LOWER,
        ),
        Figure(
            "virtual.last_of_20_over_20_alone", max(first) / (20 * cold_s), Better.LOWER, LITTLE
        ),
    ]


def _spoken(
    own: VirtualEngine, request: int, listener: Listener, voice: Voice, n_out: int
) -> Callable[[float, int], None]:
    def on_tokens(now: float, n: int) -> None:
        voice.hear(now, n, last=listener.reply.n_tokens >= n_out)
        if voice.dry_at is not None:
            own.set_deadline(request, voice.dry_at)

    return on_tokens


def prefixes() -> list[Figure]:
    """Prompts that begin alike, in a cache that little more than ten of them fill."""
    rows = {}
    for kind in ("radix", "block-hash"):
        own = engine(320, prefix_cache=kind)
        asks = workload(700).partly_shared(120, 0.6, 1.0)
        rows[kind] = summary(_play(own, asks))
        if kind == "radix":
            asked = sum(len(ask.prompt) for ask in asks)
            evicted = own.kv.prefix.n_evicted
    radix, hashed = (float(rows[kind]["cached_tokens"]) for kind in ("radix", "block-hash"))
    own, work = engine(), workload(710)
    turn = work.piece(PREFIX)
    _play(own, [Ask(turn, 30)])
    again = _play(own, [Ask(turn + work.turn(), 30)])[0]
    return [
        Figure("virtual.radix_hit_share", radix / asked, Better.HIGHER, LITTLE),
        Figure(
            "virtual.radix_hits_over_block_hash", radix / max(1.0, hashed), Better.HIGHER, LITTLE
        ),
        Figure("virtual.radix_evicted_blocks", float(evicted), Better.LOWER),
        Figure("virtual.second_turn_hit_tokens", float(again.n_cached), Better.HIGHER),
    ]


def cancel() -> list[Figure]:
    """Calls that hang up in a prompt, in a reply and before anything: steps until all is free."""
    own, work = engine(), workload(800)
    for n in range(24):
        request, _ = own.ask(work.piece(300), LONGEST)
        own.later(0.05 * n, partial(own.loop.post_abort, request))
    own.run()
    return [
        Figure("virtual.cancel_most_steps", float(own.loop.counters.abort_steps_max), Better.LOWER),
        Figure("virtual.blocks_left_held", float(own.kv.pool.counts().held), Better.LOWER),
    ]


def _play(own: VirtualEngine, asks: Sequence[Ask]) -> list[Reply]:
    listeners: list[Listener] = []
    start = own.clock.now()
    for ask in asks:
        own.later(start + ask.at_s, partial(_ask, own, ask, listeners))
    own.run()
    return [listener.reply for listener in listeners]


def _ask(own: VirtualEngine, ask: Ask, listeners: list[Listener]) -> None:
    listeners.append(own.ask(ask.prompt, ask.n_out)[1])
