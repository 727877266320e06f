"""Decoding beside the peers: first text cold and cached, a fixed shape, and the spoken workload.

Targets take turns within one run, in reversed order every other round, and answer the same asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import Reply, ms, pooled, tail
from loadtest.bench.llm.own import ALONE_THREADS, LIVE_THREADS, policy_name
from loadtest.bench.llm.target import InProcess, Target, play
from loadtest.bench.llm.workload import SYSTEM, Ask
from loadtest.bench.peers import perplexity
from loadtest.bench.peers.settings import REFERENCE, Setting

WITHIN = 0.01
"""A peer is compared with only if its perplexity is at most this much above the reference's."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Somebody who takes part. threads: of ours, 0 for a peer."""

    name: str
    most: int
    threads: int = 0
    setting: Setting | None = None

    @property
    def policy(self) -> str:
        return policy_name(self.threads) if self.threads else "2 threads"


@dataclass(slots=True)
class Field:
    """The entrants, and how to wake one."""

    entrants: list[Entrant]
    wake: Callable[[Entrant], contextlib.AbstractContextManager[Target]]


@contextlib.contextmanager
def line_up(bench: Bench, *, only_qualified: bool = False) -> Iterator[Field]:
    """Our engine with each thread policy, and the peers; all of them started."""
    settings = bench.settings()
    if only_qualified:
        good = qualified(bench.options.model)
        settings = [s for s in settings if s.name in good and s.most >= 32]
    peers = [Entrant(s.name, s.most, setting=s) for s in bench.start_peers(settings)]
    with contextlib.ExitStack() as stack:
        ours: dict[str, InProcess] = {}
        entrants = []
        for threads in (ALONE_THREADS, LIVE_THREADS):
            name = f"ours, {policy_name(threads)}"
            engine = stack.enter_context(bench.own.open(threads))
            ours[name] = InProcess(name, engine)
            entrants.append(Entrant(name, 32, threads=threads))

        @contextlib.contextmanager
        def wake(entrant: Entrant) -> Iterator[Target]:
            if entrant.setting is not None:
                with bench.awake(entrant.setting) as target:
                    yield target
            else:
                yield ours[entrant.name]

        yield Field(entrants + peers, wake)


def qualified(model: str) -> set[str]:
    """Peer settings whose perplexity is within 1 % of the shipped weights in fp32."""
    known = perplexity.stored(model)
    if REFERENCE not in known:
        return set()
    limit = known[REFERENCE] * (1 + WITHIN)
    return {name for name, value in known.items() if value <= limit}


# first text


def first_text(bench: Bench) -> dict[str, Any]:
    """200 prompt tokens never seen, then the same with a short turn behind them."""
    pairs = 2 if bench.options.quick else 8
    rows = []
    with line_up(bench) as field:
        cold: dict[str, list[float]] = {e.name: [] for e in field.entrants}
        cached: dict[str, list[float]] = {e.name: [] for e in field.entrants}
        for i in range(pairs):
            work = bench.workload(1000 + i)
            prompt = work.piece(SYSTEM)
            asks = [Ask(prompt, 2), Ask(prompt + work.turn(), 2)]
            for entrant in _order(field.entrants, i):
                with field.wake(entrant) as target:
                    replies = b.run(partial(in_turn, target, asks))
                for reply, into in zip(replies, (cold, cached), strict=True):
                    if reply.ttft_s is not None:
                        into[entrant.name].append(1000 * reply.ttft_s)
        for e in field.entrants:
            rows.append(
                {
                    "target": e.name,
                    "threads": e.policy,
                    "cold_ms": tail(cold[e.name]),
                    "cached_ms": tail(cached[e.name]),
                }
            )
    return {"prompt": SYSTEM, "rows": rows, "goals": _first_goals(bench.options.model, rows)}


async def in_turn(target: Target, asks: list[Ask]) -> list[Reply]:
    return [await target.answer(ask) for ask in asks]


def _first_goals(model: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Ours with all threads over the best qualified peer, cold; over llama.cpp's best, cached."""
    good = qualified(model)
    peers = [r for r in rows if r["target"] in good and r["cold_ms"]["n"] and r["cached_ms"]["n"]]
    llama = [r for r in peers if r["target"].startswith("llama.cpp")]
    if not peers or not llama or not rows[0]["cold_ms"]["n"]:
        return {}
    return {
        "cold_over_best_peer": rows[0]["cold_ms"]["p50"] / min(r["cold_ms"]["p50"] for r in peers),
        "cached_over_llama_cpp": rows[0]["cached_ms"]["p50"]
        / min(r["cached_ms"]["p50"] for r in llama),
    }


def show_first(body: dict[str, Any]) -> None:
    print(f"{'':26}{'first text of 200 tokens, ms':>34}")
    print(
        f"{'':26}{'cold p50':>12}{'p95':>9}{'p99':>9}{'cached p50':>13}{'p95':>9}{'p99':>9}{'n':>5}"
    )
    for row in body["rows"]:
        cold, cached = row["cold_ms"], row["cached_ms"]
        print(
            f"{row['target']:26}{ms(cold, 'p50'):>12}{ms(cold, 'p95'):>9}"
            f"{ms(cold, 'p99'):>9}{ms(cached, 'p50'):>13}{ms(cached, 'p95'):>9}"
            f"{ms(cached, 'p99'):>9}{cold['n']:>5}"
        )
    for name, value in body["goals"].items():
        print(f"  {name.replace('_', ' ')}: {value:.2f}")


# tokens per second


def fixed(bench: Bench) -> dict[str, Any]:
    """32 tokens in, 64 out, all at once."""
    shape = "32 tokens in, nothing shared, 64 out, all at once"
    steps = [n for n in bench.options.concurrency if n <= 16]
    return _sweep(bench, shape, steps, bench.rounds(3), spoken=False)


def spoken(bench: Bench) -> dict[str, Any]:
    """A shared system prompt, short turns, replies of 20-300 tokens, in bursts."""
    shape = "200-token system prompt shared, unique turns of 8-24, replies 20-300, bursts"
    return _sweep(bench, shape, list(bench.options.concurrency), bench.rounds(1), spoken=True)


def _sweep(
    bench: Bench, shape: str, steps: list[int], rounds: int, *, spoken: bool
) -> dict[str, Any]:
    rows = []
    with line_up(bench, only_qualified=spoken) as field:
        for n in steps:
            seen: dict[str, list[list[Reply]]] = {e.name: [] for e in field.entrants}
            for i in range(rounds):
                waves = _waves(bench, n, i, spoken)
                for entrant in _order(field.entrants, i):
                    if n > entrant.most:
                        continue
                    with field.wake(entrant) as target:
                        for wave in waves:
                            replies = b.run(partial(play, target, wave))
                            seen[entrant.name].append(replies)
            for e in field.entrants:
                if seen[e.name]:
                    about = {"target": e.name, "threads": e.policy, "concurrency": n}
                    rows.append(about | pooled(seen[e.name]))
    goals = _throughput_goals(bench.options.model, rows)
    return {"shape": shape, "rounds": rounds, "rows": rows, "goals": goals}


def _waves(bench: Bench, n: int, round_: int, spoken: bool) -> list[list[Ask]]:
    """Small concurrencies are played several times over, so that they too have some replies."""
    work = bench.workload(10_000 * (1 + spoken) + 100 * n + round_)
    if bench.options.quick:
        return [work.spoken(n, longest=24) if spoken else work.fixed(n)[: min(n, 4)]]
    if not spoken:
        return [work.fixed(n)]
    return [work.spoken(n) for _ in range(max(1, min(3, 8 // n)))]


def _order(entrants: list[Entrant], round_: int) -> list[Entrant]:
    return entrants[::-1] if round_ % 2 else entrants


def _throughput_goals(model: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per concurrency: each of our rows over the best qualified peer measured beside it."""
    good = qualified(model)
    goals = []
    for n in dict.fromkeys(row["concurrency"] for row in rows):
        here = [row for row in rows if row["concurrency"] == n]
        peers = [row for row in here if row["target"] in good]
        if not peers:
            continue
        best = max(peers, key=lambda row: row["tokens_per_s"])
        for row in here:
            if row["target"].startswith("ours"):
                ratio = row["tokens_per_s"] / best["tokens_per_s"]
                goals.append(
                    {
                        "concurrency": n,
                        "target": row["target"],
                        "best_peer": best["target"],
                        "ratio": ratio,
                    }
                )
    return goals


def show_sweep(body: dict[str, Any]) -> None:
    print(f"{body['shape']}; {body['rounds']} round(s)")
    print(
        f"{'calls':>5}  {'':26}{'tok/s':>8}{'TTFT p50':>10}{'p95':>8}{'p99':>8}"
        f"{'gap p50':>9}{'p95':>8}{'p99':>8}{'max':>8}{'ms/token p50':>14}{'p95':>8}{'p99':>8}"
    )
    for row in body["rows"]:
        t, g, v = row["ttft_ms"], row["gap_ms"], row["normalised_ms"]
        print(
            f"{row['concurrency']:5}  {row['target']:26}{row['tokens_per_s']:8.1f}"
            f"{ms(t, 'p50'):>10}{ms(t, 'p95'):>8}{ms(t, 'p99'):>8}"
            f"{ms(g, 'p50'):>9}{ms(g, 'p95'):>8}{ms(g, 'p99'):>8}{ms(g, 'max'):>8}"
            f"{ms(v, 'p50'):>14}{ms(v, 'p95'):>8}{ms(v, 'p99'):>8}"
        )
        if row["failed"]:
            print(f"       failed: {row['failed'][0][:80]}")
    for goal in body["goals"]:
        print(
            f"  {goal['concurrency']:2} calls: {goal['target']} / best peer within 1 % "
            f"({goal['best_peer']}): {goal['ratio']:.2f}"
        )
