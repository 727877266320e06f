"""The engine through the server's own `/v1`, with recognition and voice loaded beside it.

`voice-agent up` in a process of its own, as it is live, beside the engine alone in this process
with the same thread policy: what HTTP, the event loop and the neighbours cost; and a client that
hangs up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.decode import in_turn
from loadtest.bench.llm.measure import Reply, ms, pooled, tail
from loadtest.bench.llm.own import LIVE_THREADS, policy_name
from loadtest.bench.llm.target import InProcess, OverHttp, Target, play
from loadtest.bench.llm.up import metric, served
from loadtest.bench.llm.workload import SYSTEM, Ask
from loadtest.bench.peers.process import ServerFailed, ServerProcess

_POLL_S = 0.001


def door(bench: Bench) -> dict[str, Any]:
    quick = bench.options.quick
    steps = [n for n in bench.options.concurrency if n <= 16]
    first: dict[str, dict[str, list[float]]] = {}
    rows: dict[tuple[int, str], list[list[Reply]]] = {}
    try:
        settings = {"ENGINE__MAX_NUM_SEQS": "32"}
        with (
            served(bench.options.model, settings) as server,
            bench.own.open(LIVE_THREADS) as engine,
        ):
            server.freeze()
            http = OverHttp("/v1", server.port, model=bench.options.model)
            targets: list[Target] = [http, InProcess("in process", engine)]
            for i in range(2 if quick else 8):
                for target in targets[:: -1 if i % 2 else 1]:
                    with _awake(server, target is http):
                        _first(bench, target, i, first.setdefault(target.name, {}))
            for n in steps:
                for i in range(bench.rounds(2)):
                    asks = bench.workload(8000 + 100 * n + i).fixed(n)
                    for target in targets[:: -1 if i % 2 else 1]:
                        with _awake(server, target is http):
                            replies = b.run(partial(play, target, asks))
                        rows.setdefault((n, target.name), []).append(replies)
            with _awake(server, True):
                hung_up = b.run(partial(_hang_up, bench, http, server, 3 if quick else 20))
                most_steps = metric(server.get("/metrics"), "engine_abort_steps_max")
    except ServerFailed as error:
        bench.skip("the engine through /v1", str(error))
        return {}
    return {
        "threads": policy_name(LIVE_THREADS),
        "shape": f"{SYSTEM} tokens cold and cached; 32 in, 64 out, all at once",
        "first": {
            name: {kind: tail(values) for kind, values in kinds.items()}
            for name, kinds in first.items()
        },
        "rows": [
            {"concurrency": n, "target": name} | pooled(rounds)
            for (n, name), rounds in rows.items()
        ],
        "hang_up_to_abort_ms": tail(hung_up),
        "most_steps": most_steps,
    }


@contextlib.contextmanager
def _awake(server: ServerProcess, wanted: bool) -> Iterator[None]:
    if wanted:
        server.thaw()
    try:
        yield
    finally:
        server.freeze()


def _first(bench: Bench, target: Target, i: int, into: dict[str, list[float]]) -> None:
    work = bench.workload(8500 + i)
    prompt = work.piece(SYSTEM)
    asks = [Ask(prompt, 2), Ask(prompt + work.turn(), 2)]
    replies = b.run(partial(in_turn, target, asks))
    for reply, kind in zip(replies, ("cold", "cached"), strict=True):
        if reply.error:
            raise ServerFailed(f"{target.name}: {reply.error}")
        if reply.ttft_s is not None:
            into.setdefault(kind, []).append(1000 * reply.ttft_s)
    into.setdefault("cached tokens", []).append(replies[1].n_cached)


async def _hang_up(
    bench: Bench, target: OverHttp, server: ServerProcess, times: int
) -> list[float]:
    """Milliseconds from closing a connection until the engine counts its request as aborted."""
    took = []
    for i in range(times):
        before = _aborted(server)
        events = target.events(Ask(bench.workload(8900 + i).piece(64), 400))
        n = 0
        async for _ in events:
            n += 1
            if n == 5:
                break
        start = time.perf_counter()
        await events.aclose()
        while await asyncio.to_thread(_aborted, server) == before:
            if time.perf_counter() - start > 10.0:
                raise ServerFailed("a closed connection did not abort its request within 10 s")
            await asyncio.sleep(_POLL_S)
        took.append(1000 * (time.perf_counter() - start))
    return took


def _aborted(server: ServerProcess) -> float:
    return metric(server.get("/metrics"), "engine_aborted_total")


def show(body: dict[str, Any]) -> None:
    if not body.get("rows"):
        return
    print(f"`voice-agent up` and the engine in process, {body['threads']}; {body['shape']}")
    for name, kinds in body["first"].items():
        print(
            f"  {name:12} first text of 200 tokens: cold p50 {ms(kinds['cold'], 'p50')} "
            f"p95 {ms(kinds['cold'], 'p95')} p99 {ms(kinds['cold'], 'p99')}, cached p50 "
            f"{ms(kinds['cached'], 'p50')} p95 {ms(kinds['cached'], 'p95')} p99 "
            f"{ms(kinds['cached'], 'p99')} ms ({kinds['cached tokens']['p50']:.0f} tokens, "
            f"n = {kinds['cold']['n']})"
        )
    for row in body["rows"]:
        t, g = row["ttft_ms"], row["gap_ms"]
        print(
            f"  {row['concurrency']:3} calls {row['target']:12}{row['tokens_per_s']:8.1f} tok/s, "
            f"TTFT p50 {ms(t, 'p50')} p95 {ms(t, 'p95')} p99 {ms(t, 'p99')}, "
            f"gap p50 {ms(g, 'p50')} p95 {ms(g, 'p95')} p99 {ms(g, 'p99')}"
            + (f"; failed: {row['failed'][0][:60]}" if row["failed"] else "")
        )
    took = body["hang_up_to_abort_ms"]
    print(
        f"  connection closed to request aborted: p50 {ms(took, 'p50')} p95 {ms(took, 'p95')} p99 "
        f"{ms(took, 'p99')} max {ms(took, 'max')} ms "
        f"(n = {took['n']}; the look itself takes some), at most {body['most_steps']:.0f} steps "
        "until its blocks were free"
    )
