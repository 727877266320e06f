"""The engine alone: first text cold and cached, time between tokens and throughput per batch size.

Run: python -m loadtest.bench.engine [--model smollm2-135m] [--threads 1] [--json FILE]

`floor`: bytes of the weights, read once per step, over this machine's read bandwidth, measured by
a copy in the same run; a decode step of one request cannot be faster. Prompts are random token ids,
so nothing is cached that the row does not say.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.client import Engine
from engine.config import EngineConfig
from engine.sampling import SamplingParams
from loadtest.report import hardware, spread, write_json
from voice_agent.choose import LLMS
from voice_agent.models import ModelStore

PROMPT, OUTPUT = 32, 64
FIRST_PROMPT = 200


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    p.add_argument("--model", default="smollm2-135m", help="a registry name")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--batches", type=int, nargs="*", default=[1, 4, 8])
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    engine = Engine.load(
        EngineConfig(ModelStore().path(a.model), threads=a.threads, kv_bytes=256 << 20)
    )
    engine.warm()
    engine.start()
    try:
        body = asyncio.run(measure(engine, a))
    finally:
        engine.close()
    write_json(a.json, body)
    show(body)


async def measure(engine: Engine, a: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(1)
    cold: list[float] = []
    cached: list[float] = []
    for _ in range(5):
        prompt = _prompt(rng, FIRST_PROMPT)
        cold.append((await one(engine, prompt, 2))[0])
        cached.append((await one(engine, [*prompt, *_prompt(rng, 8)], 2))[0])
    rows = []
    for n in a.batches:
        start = time.perf_counter()
        runs = await asyncio.gather(*(one(engine, _prompt(rng, PROMPT), OUTPUT) for _ in range(n)))
        seconds = time.perf_counter() - start
        gaps = [g for _, between in runs for g in between]
        rows.append(
            {
                "batch": n,
                "tokens_per_s": n * OUTPUT / seconds,
                "between_tokens_ms": spread([g * 1000 for g in gaps]),
            }
        )
    weights = next(spec.params for spec in LLMS if spec.name == a.model)
    bandwidth = read_bandwidth()
    return {
        "hardware": hardware(),
        "model": a.model,
        "threads": a.threads,
        "shape": {"prompt": PROMPT, "output": OUTPUT, "first_text_prompt": FIRST_PROMPT},
        "first_text_cold_ms": spread([s * 1000 for s in cold]),
        "first_text_cached_ms": spread([s * 1000 for s in cached]),
        "batches": rows,
        "read_bandwidth_gb_s": bandwidth,
        "floor_step_ms": weights / bandwidth / 1e6,
    }


async def one(engine: Engine, prompt: list[int], n: int) -> tuple[float, list[float]]:
    """(seconds to the first token, seconds between tokens)."""
    params = SamplingParams(max_tokens=n, ignore_eos=True)
    start = time.perf_counter()
    times: list[float] = []
    async for delta in engine.submit(prompt, params):
        times += [time.perf_counter()] * len(delta.token_ids)
    return times[0] - start, [b - a for a, b in itertools.pairwise(times)]


def _prompt(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(1000, 40_000) for _ in range(n)]


def read_bandwidth() -> float:
    """GB/s of one thread reading 256 MB, the best of five."""
    data = np.ones(256 << 20 >> 3)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start)
    return float(data.nbytes / best / 1e9)


def show(body: dict[str, Any]) -> None:
    print(f"{body['hardware']}; {body['model']}, {body['threads']} thread(s), {body['shape']}")
    print(
        f"first text: cold {body['first_text_cold_ms']['p50']:.0f} ms, "
        f"cached {body['first_text_cached_ms']['p50']:.0f} ms"
    )
    for row in body["batches"]:
        between = row["between_tokens_ms"]
        limit = ""
        if row["batch"] == 1:
            limit = f", {100 * body['floor_step_ms'] / between['p50']:.0f} % of the memory limit"
        print(
            f"batch {row['batch']:2}: {row['tokens_per_s']:6.1f} tokens/s, between tokens p50 "
            f"{between['p50']:.1f} max {between['max']:.1f} ms{limit}"
        )


if __name__ == "__main__":
    main()
