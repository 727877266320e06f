"""Prefix caches compared: radix, block hashes and none, and what each part of radix is worth.

First text when 60 % of the requests begin with one of three prefixes, at 70 % of the load that a
server without a cache can bear; and throughput when no two requests share anything. In virtual time
the cache is so small that what is evicted, and when, matters.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms, pooled, summary
from loadtest.bench.llm.oldest import OldestFirst
from loadtest.bench.llm.own import ALONE_THREADS, policy_name
from loadtest.bench.llm.target import InProcess, play
from loadtest.bench.llm.virtual import Listener, VirtualEngine
from loadtest.bench.llm.workload import BURST, PREFIX, SHORT_REPLY, Ask

KINDS = ("radix", "block-hash", "none")
SHARE, LOAD = 0.6, 0.7
TIGHT, AMPLE = 10 * 32, 16 * 1024
"""Blocks of the cache: little more than ten requests hold that share nothing, and more than all
ever fill."""
VARIANTS: dict[str, dict[str, Any]] = {
    "radix": {},
    "  without exact tails": {"exact_tails": False},
    "  in order of arrival": {"scheduling_policy": "fcfs"},
    "  without pins": {"pins": False},
    "  oldest evicted first": {"lru": False},
    "  neither pins nor that order": {"pins": False, "lru": False},
    "  with ample memory": {"n_blocks": AMPLE},
    "block-hash": {"prefix_cache": "block-hash"},
    "none": {"prefix_cache": "none"},
}


def prefixes(bench: Bench) -> dict[str, Any]:
    quick = bench.options.quick
    n_virtual, n_real = (60, 6) if quick else (1200, 40)
    simulated = {name: _virtual(bench, n_virtual, SHARE, **v) for name, v in VARIANTS.items()}
    shared = bench.workload(7000).partly_shared(n_real, SHARE, _apart_s(bench))
    unique = [Ask(ask.prompt, ask.n_out) for ask in _unique(bench, n_real)]
    measured: dict[str, Any] = {kind: [] for kind in KINDS}
    alone: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for i in range(bench.rounds(2)):
        for kind in KINDS[:: -1 if i % 2 else 1]:
            for asks, into in ((shared, measured), (unique, alone)):
                with bench.own.open(ALONE_THREADS, prefix_cache=kind) as engine:
                    replies = b.run(partial(play, InProcess("ours", engine), asks))
                if into is measured:
                    measured[kind].append(replies)
                else:
                    alone[kind].append(summary(replies)["tokens_per_s"])
    return {
        "threads": policy_name(ALONE_THREADS),
        "prefix": PREFIX,
        "share": SHARE,
        "shape": (
            f"{100 * SHARE:.0f} % of the requests begin with one of three prefixes of {PREFIX} "
            f"tokens, turns of 8-24, {SHORT_REPLY} out, bursts, {100 * LOAD:.0f} % load"
        ),
        "blocks": {"virtual": TIGHT, "ample": AMPLE},
        "virtual": simulated,
        "virtual_unique": {
            kind: _virtual(bench, n_virtual, 0.0, prefix_cache=kind, pins=False) for kind in KINDS
        },
        "measured": {kind: pooled(rounds) for kind, rounds in measured.items()},
        "unique_tokens_per_s": {kind: max(values) for kind, values in alone.items()},
    }


def _apart_s(bench: Bench) -> float:
    """Seconds between bursts at `LOAD` of what a server without a cache can bear."""
    if bench.options.quick:
        return 0.2
    warmup = bench.own.warmup(ALONE_THREADS)
    prompt_ms = warmup.predict_prefill_ms(PREFIX + 16)
    decode_ms = SHORT_REPLY * warmup.predict_decode_ms(8) / 8
    return BURST * (prompt_ms + decode_ms) / 1000 / LOAD


def _unique(bench: Bench, n: int) -> list[Ask]:
    work = bench.workload(7100)
    return [Ask(work.unique(100), SHORT_REPLY) for _ in range(n)]


def _virtual(
    bench: Bench,
    n: int,
    share: float,
    *,
    n_blocks: int = TIGHT,
    exact_tails: bool = True,
    pins: bool = True,
    lru: bool = True,
    **options: Any,
) -> dict[str, Any]:
    config = bench.own.config(ALONE_THREADS, max_requests=4096, **options)
    warmup = bench.own.warmup(ALONE_THREADS)
    engine = VirtualEngine(config, warmup, n_blocks, exact_tails=exact_tails)
    if not lru:
        engine.kv.prefix = OldestFirst(engine.kv.pins, engine.kv.block_size)
    asks = bench.workload(7000).partly_shared(n, share, _apart_s(bench))
    if pins and share:
        for number, prefix in enumerate(_common(asks)):
            engine.ask(prefix, 1, pin_key=f"prefix {number}", prefill_only=True)
    engine.run()
    start = engine.clock.now()
    listeners: list[Listener] = []
    for ask in asks:
        engine.later(start + ask.at_s, partial(_ask, engine, ask, listeners))
    engine.run()
    body = summary([listener.reply for listener in listeners])
    body["prompt_tokens"] = sum(len(ask.prompt) for ask in asks)
    body["evicted_blocks"] = engine.kv.prefix.n_evicted
    return body


def _ask(engine: VirtualEngine, ask: Ask, listeners: list[Listener]) -> None:
    listeners.append(engine.ask(ask.prompt, ask.n_out)[1])


def _common(asks: list[Ask]) -> list[tuple[int, ...]]:
    """The prefixes that several requests begin with."""
    seen: dict[tuple[int, ...], int] = {}
    for ask in asks:
        prefix = ask.prompt[:PREFIX]
        seen[prefix] = seen.get(prefix, 0) + 1
    return [prefix for prefix, times in seen.items() if times > 1]


def show(body: dict[str, Any]) -> None:
    print(f"{body['shape']}; {body['threads']}")
    base = body["virtual"]["block-hash"]["ttft_ms"]
    print(
        f"{f'virtual time, {TIGHT} blocks':32}{'TTFT p50':>10}{'p95':>9}{'p99':>9}"
        f"{'over block-hash':>22}{'cached':>9}{'evicted':>9}"
    )
    for name, row in body["virtual"].items():
        t = row["ttft_ms"]
        change = [f"{100 * (t[p] / base[p] - 1):+.0f} %" for p in ("p50", "p95")]
        cached = 100 * row["cached_tokens"] / row["prompt_tokens"]
        print(
            f"{name:32}{ms(t, 'p50'):>10}{ms(t, 'p95'):>9}{ms(t, 'p99'):>9}"
            f"{' / '.join(change):>22}{cached:7.0f} %{row['evicted_blocks']:9}"
        )
    print(f"{'measured':32}{'TTFT p50':>10}{'p95':>9}{'p99':>9}")
    for name, row in body["measured"].items():
        t = row["ttft_ms"]
        print(f"{name:32}{ms(t, 'p50'):>10}{ms(t, 'p95'):>9}{ms(t, 'p99'):>9}   (n = {t['n']})")
    unique, lone = body["unique_tokens_per_s"], body["virtual_unique"]
    for kind in KINDS[:2]:
        print(
            f"unique prompts, {kind} / none: measured {unique[kind] / unique['none']:.3f}, "
            f"virtual {lone[kind]['tokens_per_s'] / lone['none']['tokens_per_s']:.3f}"
        )
