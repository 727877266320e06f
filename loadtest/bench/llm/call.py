"""The engine through live calls: `voice-agent up`, and callers who speak over Realtime sockets.

Callers talk recorded speech in real time and cut into every answer but the last. What the engine
did is read from the server itself: each turn's line in its log (prompt and cached tokens), and
`/metrics` (aborts and the most steps until their blocks were free, tokens, first tokens, gaps).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms, tail
from loadtest.bench.llm.own import LIVE_THREADS, policy_name
from loadtest.bench.llm.up import metric, served
from loadtest.bench.peers.process import ServerFailed, ServerProcess
from loadtest.callers.caller import Caller, CallLog, Habits
from loadtest.callers.clip import Clip, load_clip
from loadtest.callers.realtime import RealtimeLine

CALLS, WAVES, TURNS = 4, 2, 4
SPEECH = ("ps_goforward", "ps_something", "ps_cards_005", "ps_cards_001", "ps_cards_003")
CLIPS = Path(__file__).parents[3] / "tests" / "data" / "clips"
AGENT = """
instructions = "You are a storyteller on the phone. Answer with a long story of ten sentences."
[limits]
max_reply_tokens = 400
"""
_CUT_IN_S = 0.3
"""Of an answer's sound before the caller speaks again: the engine still makes the rest of it."""
_LISTEN_S = 6.0
_CALL_S = 120.0
"""No turn begins later; the number of turns ends a call long before."""
_POLL_S = 0.25
_SHOWN = (
    "tokens_total", "aborted_total", "abort_steps_max", "ttft_live_ms_p50", "ttft_live_ms_p99",
    "token_gap_live_ms_p50", "token_gap_live_ms_p99", "evicted_blocks_total", "preemptions_total",
    "integrity_failures_total",
)  # fmt: skip


def call(bench: Bench) -> dict[str, Any]:
    n, waves, turns = (1, 1, 2) if bench.options.quick else (CALLS, WAVES, TURNS)
    clips = [load_clip(CLIPS / f"{name}.wav") for name in SPEECH]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "default.toml").write_text(AGENT, "utf-8")
        settings = {"AGENTS_DIR": folder, "SERVER__MAX_CALLS": str(n), "LOG__FORMAT": "json"}
        try:
            with served(bench.options.model, settings) as server:
                results, rates = b.run(partial(_talk, server, clips, n, waves, turns))
                text = server.get("/metrics")
                lines = turn_lines(server.log())
        except ServerFailed as error:
            bench.skip("the engine through live calls", str(error))
            return {}
    engine = {name: metric(text, f"engine_{name}") for name in _SHOWN}
    return {
        "threads": policy_name(LIVE_THREADS),
        "shape": f"{waves} x {n} calls at once, {turns} turns each, answers cut into but the last",
        "refused": [r.refused or r.failed for r in results if r.refused or r.failed],
        "turns": len(lines),
        "interrupted": sum(bool(line["interrupted"]) for line in lines),
        "voice_to_voice_ms": tail([1000 * t.v2v_s for r in results for t in r.turns if t.v2v_s]),
        "prefix": prefix(lines),
        "busy_tokens_per_s": tail(rates),
        "engine": engine,
    }


def turn_lines(log: str) -> list[dict[str, Any]]:
    """The trace of every turn that the language model answered, in the order they ended."""
    found = []
    for line in log.splitlines():
        if line.startswith("{"):
            body = json.loads(line)
            if body.get("prompt_tokens") and "cached_tokens" in body:
                found.append(body)
    return found


def prefix(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tokens of each prompt, and those that had to be computed: of a call's first turn, of later
    ones."""
    seen: set[str] = set()
    kinds: dict[str, list[dict[str, Any]]] = {"first": [], "later": []}
    for line in lines:
        kinds["later" if line["call"] in seen else "first"].append(line)
        seen.add(line["call"])
    return {
        kind: {
            "prompt_tokens": tail([float(row["prompt_tokens"]) for row in rows]),
            "new_tokens": tail(
                [float(row["prompt_tokens"] - row["cached_tokens"]) for row in rows]
            ),
            "cached_percent": 100.0
            * sum(row["cached_tokens"] for row in rows)
            / max(1, sum(row["prompt_tokens"] for row in rows)),
        }
        for kind, rows in kinds.items()
    }


async def _talk(
    server: ServerProcess, clips: list[Clip], n: int, waves: int, turns: int
) -> tuple[list[CallLog], list[float]]:
    """What the callers saw; and the engine's tokens per second wherever it was busy all the time
    between two looks at it."""
    url = f"ws://127.0.0.1:{server.port}/v1/realtime?model=default"
    loop = asyncio.get_running_loop()
    rates: list[float] = []
    watch = asyncio.create_task(_watch(server, rates))

    async def one(i: int) -> CallLog:
        await asyncio.sleep(0.4 * (i % n))
        habits = Habits(
            clips=tuple(clips),
            seed=i,
            until_s=loop.time() + _CALL_S,
            barge_in=1.0,
            barge_in_after_s=(_CUT_IN_S, _CUT_IN_S),
            turns=turns,
            listen_s=_LISTEN_S,
        )
        return await Caller(RealtimeLine(url), habits).run()

    results: list[CallLog] = []
    try:
        for wave in range(waves):
            first = wave * n
            results += await asyncio.gather(*(one(i) for i in range(first, first + n)))
        await asyncio.sleep(1.0)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    return results, rates


async def _watch(server: ServerProcess, rates: list[float]) -> None:
    before: tuple[float, float, bool] | None = None
    while True:
        text = await asyncio.to_thread(server.get, "/metrics")
        busy = metric(text, "engine_running") > 0
        now = (time.monotonic(), metric(text, "engine_tokens_total"), busy)
        if before is not None and before[2] and busy and now[1] > before[1]:
            rates.append((now[1] - before[1]) / (now[0] - before[0]))
        before = now
        await asyncio.sleep(_POLL_S)


def show(body: dict[str, Any]) -> None:
    if "engine" not in body:
        return
    engine, rate = body["engine"], body["busy_tokens_per_s"]
    print(f"`voice-agent up`, {body['threads']}; {body['shape']}: {body['turns']} turns answered")
    for kind, row in body["prefix"].items():
        prompt, new = row["prompt_tokens"], row["new_tokens"]
        print(
            f"  prefix, {kind + ' turns':12} prompt p50 {ms(prompt, 'p50')} tokens, new p50 "
            f"{ms(new, 'p50')} p95 {ms(new, 'p95')} p99 {ms(new, 'p99')}; "
            f"{row['cached_percent']:.0f} % cached (n = {new['n']})"
        )
    print(
        f"  cancel: {body['interrupted']} answers cut into, {engine['aborted_total']:.0f} requests "
        f"aborted, at most {engine['abort_steps_max']:.0f} steps until their blocks were free"
    )
    print(
        f"  throughput while busy: p50 {ms(rate, 'p50')} p95 {ms(rate, 'p95')} p99 "
        f"{ms(rate, 'p99')} tokens/s (n = {rate['n']}); first token p50 "
        f"{engine['ttft_live_ms_p50']:.0f} p99 {engine['ttft_live_ms_p99']:.0f} ms, gap p50 "
        f"{engine['token_gap_live_ms_p50']:.1f} p99 {engine['token_gap_live_ms_p99']:.1f} ms"
    )
    v2v = body["voice_to_voice_ms"]
    print(f"  voice to voice p50 {ms(v2v, 'p50')} p95 {ms(v2v, 'p95')} p99 {ms(v2v, 'p99')} ms")
