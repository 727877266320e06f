"""A prompt of 4096 tokens arrives while 16 calls speak: what it does to their gaps."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from engine.client import Engine
from engine.sampling import SamplingParams
from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms, tail
from loadtest.bench.llm.own import ALONE_THREADS, policy_name
from loadtest.bench.llm.voice import Voice
from loadtest.bench.llm.workload import SYSTEM, Ask

SPEAKING = 16
PROMPT = 4096


def long_prompt(bench: Bench) -> dict[str, Any]:
    """The same calls without it and with it; only gaps while it is computed are judged."""
    quick = bench.options.quick
    n, length, replies = (4, 512, 60) if quick else (SPEAKING, PROMPT, 250)
    work = bench.workload(4000)
    system = work.piece(SYSTEM)
    asks = [Ask(system + work.turn(), replies) for _ in range(n)]
    prompt = work.piece(length)
    shape = f"{length} prompt tokens amid {n} calls that speak"
    out: dict[str, Any] = {"threads": policy_name(ALONE_THREADS), "shape": shape}
    out |= {"calls": n, "prompt": length}
    with bench.own.open(ALONE_THREADS, max_requests=512) as engine:
        room = engine.max_model_len - 2
        if length > room:
            bench.skip(f"a prompt of {length} tokens", f"the model takes {room}")
            return out
        out["step_limit_ms"] = engine.config.max_step_ms
        without, _ = b.run(lambda: _speak(engine, asks, ()))
    with bench.own.open(ALONE_THREADS, max_requests=512) as engine:
        amid, took_s = b.run(lambda: _speak(engine, asks, prompt))
    out |= {"without_ms": tail(without), "amid_ms": tail(amid), "first_text_s": took_s}
    out["longest_gap_grew_ms"] = out["amid_ms"]["max"] - out["without_ms"]["max"]
    return out


async def _speak(
    engine: Engine, asks: list[Ask], prompt: tuple[int, ...]
) -> tuple[list[float], float]:
    """(gaps in ms from the moment the long prompt came, its time to first text in s)."""
    started, came = [asyncio.Event() for _ in asks], asyncio.Event()
    window = [float("inf"), float("inf")]
    calls = [
        asyncio.create_task(_call(engine, ask, event, window))
        for ask, event in zip(asks, started, strict=True)
    ]
    for event in started:
        await event.wait()
    took_s = 0.0
    window[0] = time.monotonic()
    if prompt:
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        async for _ in engine.submit(prompt, params):
            took_s = took_s or time.monotonic() - window[0]
        window[1] = time.monotonic()
    came.set()
    gaps = [gap for call in calls for gap in await call]
    return gaps, took_s


async def _call(
    engine: Engine, ask: Ask, started: asyncio.Event, window: list[float]
) -> list[float]:
    voice, times = Voice(), []
    generation = engine.submit(ask.prompt, SamplingParams(max_tokens=ask.n_out, ignore_eos=True))
    async for delta in generation:
        now = time.monotonic()
        times.append(now)
        voice.hear(now, len(delta.token_ids))
        if voice.dry_at is not None:
            generation.set_deadline(voice.dry_at)
        if len(times) == 4:
            started.set()
    return [
        1000 * (after - before)
        for before, after in itertools.pairwise(times)
        if before >= window[0] and after <= window[1]
    ]


def show(body: dict[str, Any]) -> None:
    if "amid_ms" not in body:
        return
    print(
        f"{body['prompt']} prompt tokens amid {body['calls']} speaking calls, {body['threads']}: "
        f"its first text after {body['first_text_s']:.1f} s"
    )
    for name in ("without_ms", "amid_ms"):
        gaps = body[name]
        print(
            f"  gaps {name[:-3]:8} p50 {ms(gaps, 'p50')} p95 {ms(gaps, 'p95')} p99 "
            f"{ms(gaps, 'p99')} "
            f"max {ms(gaps, 'max')} ms (n = {gaps['n']})"
        )
    print(
        f"  the longest gap grew by {body['longest_gap_grew_ms']:.0f} ms; "
        f"a step may take {body['step_limit_ms']:.0f} ms"
    )
