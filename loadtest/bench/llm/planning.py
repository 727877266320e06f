"""What planning a step costs: the scheduler alone, no model, every request decoding."""

from __future__ import annotations

import time
from typing import Any

from engine.budget import CostModel
from engine.kvcache import KvCache
from engine.request import Request
from engine.sampling import SamplingParams
from engine.scheduler import Scheduler
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms, tail
from loadtest.bench.llm.own import ALONE_THREADS

REQUESTS = (16, 256, 4096)
GPU_STEP_MS = 10.0
"""A short step of a small model on a GPU; one percent of it is the goal at 256 requests."""
_PROMPT, _LONGEST = 24, 4000
_GPU = CostModel(base_ms=8.0, per_token_ms=0.004)


def planning(bench: Bench) -> dict[str, Any]:
    """`plan` and the rest of a step's bookkeeping, per step, in microseconds."""
    rows = []
    for n in REQUESTS:
        times = _time(bench, n, 20 if bench.options.quick else max(100, 20_000 // n))
        plan_us = {name: tail([1e6 * t for t in values]) for name, values in times.items()}
        median_us = plan_us["plan"]["p50"]
        rows.append(
            {
                "requests": n,
                "plan_us": plan_us["plan"],
                "advance_us": plan_us["advance"],
                "plan_us_per_request": median_us / n,
                "percent_of_gpu_step": 100 * median_us / (1000 * GPU_STEP_MS),
            }
        )
    growth = rows[-1]["plan_us_per_request"] / rows[-2]["plan_us_per_request"]
    return {
        "threads": "1 thread, the scheduler alone",
        "shape": "every request decodes",
        "gpu_step_ms": GPU_STEP_MS,
        "rows": rows,
        "growth_per_request": growth,
    }


def _time(bench: Bench, n: int, steps: int) -> dict[str, list[float]]:
    config = bench.own.config(
        ALONE_THREADS,
        max_num_seqs=n,
        max_num_batched_tokens=n + 512,
        max_step_ms=200.0,
        idle_step_ms=200.0,
        max_requests=n,
    )
    blocks = n * -(-(_PROMPT + steps + 80) // 16) + 64
    kv = KvCache(blocks, 16, max_pinned=0, prefix_cache="radix")
    scheduler = Scheduler(config, kv, _GPU)
    for i in range(n):
        prompt = [1 + (i * 31 + j * 7) % 30_000 for j in range(_PROMPT)]
        params = SamplingParams(max_tokens=steps + 60)
        scheduler.add(
            Request(i, prompt, params, seed=i, max_new=steps + 60, arrival_s=0.0, deadline_s=1.0),
            0.0,
        )
    times: dict[str, list[float]] = {"plan": [], "advance": []}
    now = 0.0
    while len(times["plan"]) < steps:
        waiting = scheduler.n_waiting
        before = time.perf_counter()
        plan = scheduler.plan(now)
        planned = time.perf_counter()
        kv.copied(plan.copies)
        for request_id, n_tokens in plan.tokens.items():
            request = scheduler.requests[request_id]
            scheduler.advance(request, n_tokens)
            if request.remaining == 0:
                request.tokens.append(1 + request.known % 30_000)
            scheduler.set_deadline(request_id, now + 1.0)
        after = time.perf_counter()
        now += 0.01
        if not waiting:
            times["plan"].append(planned - before)
            times["advance"].append(after - planned)
    return times


def show(body: dict[str, Any]) -> None:
    print(f"{body['threads']}; {body['shape']}")
    print(
        f"{'requests':>9}{'plan us p50':>13}{'p95':>9}{'p99':>9}{'a request':>11}"
        f"{'other us p50':>14}"
    )
    for row in body["rows"]:
        plan = row["plan_us"]
        print(
            f"{row['requests']:9}{ms(plan, 'p50'):>13}{ms(plan, 'p95'):>9}{ms(plan, 'p99'):>9}"
            f"{row['plan_us_per_request']:11.3f}{ms(row['advance_us'], 'p50'):>14}"
            f"   {row['percent_of_gpu_step']:.2f} % of a {body['gpu_step_ms']:.0f} ms step"
        )
    print(f"  per request, 4096 over 256: {body['growth_per_request']:.2f} times")
