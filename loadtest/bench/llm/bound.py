"""What the machine allows: read bandwidth, and all linears of a step with our kernel alone."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from engine.client import Engine
from engine.runner import ModelRunner
from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms, summary
from loadtest.bench.llm.own import ALONE_THREADS, LIVE_THREADS, policy_name
from loadtest.bench.llm.target import InProcess, play

PROBE_BYTES = 512 << 20
Product = Callable[[], object]


def bound(bench: Bench) -> dict[str, Any]:
    """Per thread count and batch: linears alone, a real step, and what both are of the limits."""
    quick = bench.options.quick
    batches = (1, 4) if quick else (1, 4, 8, 16, 32)
    bandwidth = {n: read_bandwidth(n, 2 if quick else 5) for n in (1, 2)}
    rows = []
    for threads in (ALONE_THREADS, LIVE_THREADS):
        with bench.own.open(threads) as engine:
            runner = bench.own.parts(threads).runner
            n_bytes = weight_bytes(runner)
            for n in batches:
                linears_ms = time_linears(runner, n, threads, 3 if quick else 8)
                steps = _steps(bench, engine, n)
                step_ms = float(steps["p50"])
                floor_ms = n_bytes / bandwidth[threads] / 1e6
                rows.append(
                    {
                        "threads": policy_name(threads),
                        "batch": n,
                        "floor_ms": floor_ms,
                        "linears_ms": linears_ms,
                        "step_ms": step_ms,
                        "steps_ms": steps,
                        "step_percent_of_linears_bound": 100 * linears_ms / step_ms,
                        "linears_percent_of_bandwidth": 100 * floor_ms / linears_ms,
                        "step_percent_of_bandwidth": 100 * floor_ms / step_ms,
                        "outside_linears_percent": 100 * (1 - linears_ms / step_ms),
                    }
                )
    return {
        "read_bandwidth_gb_s": {str(n): value for n, value in bandwidth.items()},
        "weight_bytes": n_bytes,
        "rows": rows,
    }


def _steps(bench: Bench, engine: Engine, n: int) -> dict[str, Any]:
    """Milliseconds between tokens of n calls that decode together."""
    asks = bench.workload(500 + n).fixed(n)
    replies = b.run(lambda: play(InProcess("ours", engine), asks))
    return dict(summary(replies)["gap_ms"])


def read_bandwidth(threads: int, tries: int = 5) -> float:
    """GB/s of `threads` threads that sum 512 MB together; the best of `tries`."""
    data = np.ones(PROBE_BYTES >> 3)
    parts = np.array_split(data, threads)
    return PROBE_BYTES / min(_together([p.sum for p in parts]) for _ in range(tries)) / 1e9


def time_linears(runner: ModelRunner, n: int, threads: int, tries: int) -> float:
    """Best milliseconds for every linear of a step over n rows, shared evenly between threads.

    Nobody waits for anybody within a step, so no engine on this kernel can be faster.
    """
    products = linear_calls(runner, n)
    shares = [products[i::threads] for i in range(threads)]

    def all_of(share: list[Product]) -> Callable[[], None]:
        def work() -> None:
            for product in share:
                product()

        return work

    jobs = [all_of(share) for share in shares]
    _together(jobs)
    return 1000 * min(_together(jobs) for _ in range(tries))


def _together(jobs: list[Callable[[], Any]]) -> float:
    """Seconds until all have ended, each in a thread of its own; the start is not counted."""
    barrier = threading.Barrier(len(jobs) + 1)

    def one(job: Callable[[], Any]) -> None:
        barrier.wait()
        job()

    workers = [threading.Thread(target=one, args=(job,)) for job in jobs]
    for worker in workers:
        worker.start()
    barrier.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def linear_calls(runner: ModelRunner, n: int) -> list[Product]:
    """One call per linear of the model, on n rows, with nothing to prepare."""
    model: Any = runner.model
    calls: list[Product] = []
    with torch.inference_mode():
        for linear in _linears(model):
            x = torch.randn(n, linear.n_in)
            if hasattr(linear, "weight"):
                calls.append(_native(linear, x))
            else:
                calls.append(partial(linear, x))
    return calls


def _native(linear: Any, x: torch.Tensor) -> Product:
    """Straight to the kernel: at a batch of one, preparing a call costs a tenth of it."""
    y = torch.empty(x.shape[0], linear.n_out)
    run, weight = linear._library.linear_group_run, ctypes.byref(linear.weight)
    source, into = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
    nothing, rows = ctypes.c_void_p(None), x.shape[0]

    def call(alive: object = (x, y, linear)) -> object:
        return run(weight, source, rows, nothing, into, nothing)

    return call


def _linears(model: Any) -> list[Any]:
    """Every linear in the order of a step: of the native model or of PyTorch's."""
    weights = getattr(model, "weights", model)
    found = []
    for layer in weights.layers:
        for name in ("qkv", "q", "k", "v", "o", "gate_up", "gate", "up", "down"):
            if hasattr(layer, name):
                found.append(getattr(layer, name))
    return [*found, weights.head]


def weight_bytes(runner: ModelRunner) -> int:
    """Bytes that a step must read at least once: every linear's weight as it is kept."""
    model: Any = runner.model
    return sum(getattr(w, "n_bytes", w.n_in * w.n_out) for w in _linears(model))


def show(body: dict[str, Any]) -> None:
    one, two = body["read_bandwidth_gb_s"].values()
    print(
        f"read bandwidth: {one:.1f} GB/s with one thread, {two:.1f} with two; "
        f"weights {body['weight_bytes'] / 1e6:.0f} MB a step"
    )
    print(
        f"{'':22}{'batch':>6}{'memory ms':>11}{'linears ms':>12}{'step ms':>9}"
        f"{'p95':>8}{'p99':>8}{'step: % of linears bound':>26}{'% of bandwidth':>16}"
    )
    for row in body["rows"]:
        print(
            f"{row['threads']:22}{row['batch']:6}{row['floor_ms']:11.2f}{row['linears_ms']:12.2f}"
            f"{row['step_ms']:9.2f}{ms(row['steps_ms'], 'p95'):>8}{ms(row['steps_ms'], 'p99'):>8}"
            f"{row['step_percent_of_linears_bound']:26.0f}"
            f"{row['step_percent_of_bandwidth']:16.0f}"
        )
