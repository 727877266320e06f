"""The CPU kernels against what memory and the processor allow, per shape.

Run: python -m loadtest.bench kernels [--quick] [--only PART ...] [--json FILE]

Ceilings, in the same run: a native loop that only reads as much memory, best of one stream and
four, timed again beside every shape because a shared host gives more or less by the minute; and one
that only multiplies. `linear_group` multiplies by weights that no cache can hold (96 MB of copies
per shape) and is put beside PyTorch's fbgemm with per-row scales on the same shapes, rows and
threads. `paged_attention` reads contexts scattered over a cache of twice that size. `step` is a
whole decode step: what Python adds to the native call, and what a second thread that is 30 % busy
in Python does to it. A second ceiling of `paged_attention` is a loop that only reads the same
blocks in the same order.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.free_blocks import RUN
from engine.inputs import Row
from engine.models.batch import make_batch
from engine.runner import Runner
from kernels import build
from kernels.linear_group.cpu import Arena, PackedLinear, Weight
from kernels.linear_group.spec import quantise
from kernels.linear_w8.fbgemm import linear_w8
from kernels.linear_w8.spec import quantise as quantise_rows
from kernels.paged_attention.spec import SCALE_BYTES
from loadtest.report import hardware, write_json
from voice_agent.cli.runtime import SWITCH_INTERVAL_S
from voice_agent.models import ModelStore

FAR = 96 << 20
"""Bytes between two uses of the same weight: three times this machine class's last cache."""
LINEARS = {
    "SmolLM2 q, o": (576, 576),
    "SmolLM2 gate and up": (576, 3072),
    "SmolLM2 down": (1536, 576),
    "Qwen 0.5B q, o": (896, 896),
    "Qwen 0.5B gate and up": (896, 9728),
    "Qwen 0.5B down": (4864, 896),
}
"""(n_in, n_out)."""
ROWS = (1, 4, 8, 16, 32, 200)
HEADS = {"SmolLM2": (9, 3, 64), "Qwen 0.5B": (14, 2, 64)}
"""(heads, kv heads, head size)."""
PARTS = ("linears1", "linears2", "attention", "step")
"""Of the benchmark; `linears` with one thread and with two."""
BLOCK = 16
MODELS = ("smollm2-135m", "qwen2.5-0.5b")
Call = Callable[[], object]


def best_s(call: Call, tries: int) -> float:
    """The shortest of `tries` runs after one that warms up; seconds."""
    call()
    spent = []
    for _ in range(tries):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return min(spent)


def together_s(calls: list[Call], tries: int) -> float:
    """The same for several calls at once, each in a thread of its own: first start to last end."""
    if len(calls) == 1:
        return best_s(calls[0], tries)
    gate = threading.Barrier(len(calls))
    spans: list[list[tuple[float, float]]] = [[] for _ in calls]

    def work(call: Call, spent: list[tuple[float, float]]) -> None:
        for _ in range(tries + 1):
            gate.wait()
            start = time.perf_counter()
            call()
            spent.append((start, time.perf_counter()))

    workers = [threading.Thread(target=work, args=pair) for pair in zip(calls, spans, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took: list[float] = [
        max(e for _, e in r) - min(s for s, _ in r) for r in zip(*spans, strict=True)
    ]
    return min(took[1:])


class Reads:
    """What memory gives: the fastest of some passes over as much memory as the kernels read."""

    def __init__(self, library: ctypes.CDLL, tries: int) -> None:
        library.native_read.restype = ctypes.c_uint64
        self._library, self._tries = library, tries
        self._arena = Arena(library, FAR)
        self._address = self._arena.take(FAR)
        ctypes.memset(self._address, 1, FAR)
        self.seen: dict[int, list[float]] = {1: [], 2: []}

    def gb_s(self, threads: int) -> float:
        """Now, with so many threads, best of one stream and four; kept in `seen`."""
        best = max(self._gb_s(threads, streams) for streams in (1, 4))
        self.seen[threads].append(best)
        return best

    def _gb_s(self, threads: int, streams: int) -> float:
        each = FAR // threads
        calls: list[Call] = [
            partial(
                self._library.native_read,
                c_void_p(self._address + i * each),
                ctypes.c_int64(each),
                streams,
            )
            for i in range(threads)
        ]
        return FAR / together_s(calls, self._tries) / 1e9


@contextmanager
def pool_of(library: ctypes.CDLL, threads: int) -> Iterator[c_void_p]:
    """The engine's own threads; null for one."""
    library.pool_new.restype = c_void_p
    pool = c_void_p(library.pool_new(threads) if threads > 1 else None)
    try:
        yield pool
    finally:
        if pool:
            library.pool_free(pool)


def linears(bits: int, threads: int, tries: int, reads: Reads) -> list[dict[str, Any]]:
    """Every shape and number of rows at one width of codes."""
    library, found = build.library(), []
    for name, (n_in, n_out) in LINEARS.items():
        codes = quantise(torch.randn(n_out, n_in) * 0.05, bits)
        arena = Arena(library)
        packed = [PackedLinear(codes, arena)]
        packed += [PackedLinear(codes, arena) for _ in range(FAR // packed[0].n_bytes)]
        peers = []
        if bits == 8:
            q, scale = quantise_rows(codes.dense())
            peers = [linear_w8(q, scale) for _ in range(FAR // (n_in * n_out))]
        limit = reads.gb_s(threads)
        for n in ROWS:
            x, y = torch.randn(n, n_in), torch.empty(n, n_out)
            count = _count(n, len(packed))
            weights = (Weight * count)(*(p.weight for p in packed[:count]))
            with pool_of(library, threads) as pool:
                args = (weights, count, c_void_p(x.data_ptr()), n, c_void_p(y.data_ptr()), pool)
                one_s = best_s(partial(library.linear_group_run_all, *args), tries) / count
            row = _row(name, bits, threads, n, n_in * n_out, packed[0].n_bytes, one_s, limit)
            if peers:
                some = peers[: _count(n, len(peers))]
                with torch.inference_mode():
                    theirs = best_s(partial(_each, some, x), tries)
                row["fbgemm_us"] = 1e6 * theirs / len(some)
                row["times_fbgemm"] = row["fbgemm_us"] / row["us"]
            found.append(row)
    return found


def _each(products: list[linear_w8], x: torch.Tensor) -> None:
    for product in products:
        product(x)


def _count(n_rows: int, most: int) -> int:
    """Many rows take long enough that one pass over fewer copies still is no cache's work."""
    return most if n_rows <= 8 else max(1, most // 4)


def _row(
    name: str,
    bits: int,
    threads: int,
    n: int,
    macs: int,
    n_bytes: int,
    one_s: float,
    limit: float,
) -> dict[str, Any]:
    gb_s = n_bytes / one_s / 1e9
    return {
        "shape": name,
        "bits": bits,
        "threads": threads,
        "rows": n,
        "us": 1e6 * one_s,
        "gb_s": gb_s,
        "read_gb_s": limit,
        "percent_of_bandwidth": 100 * gb_s / limit,
        "gmac_s": macs * n / one_s / 1e9,
    }


class _Cache(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        *((n, ctypes.c_int32) for n in ("n_blocks", "kv_heads", "block_size", "d", "bits")),
    ]


def fma_rate(library: ctypes.CDLL, tries: int) -> float:
    """GMAC/s of one thread in fp32."""
    library.native_multiply.restype = ctypes.c_float
    n = 1 << 20
    seconds = best_s(partial(library.native_multiply, ctypes.c_int64(n)), tries)
    return float(n * 16 * 16 / seconds / 1e9)


def attention(tries: int, reads: Reads, gmac_s: float) -> list[dict[str, Any]]:
    """Decode, one query per request, one request after the other, as in a step, over a cache larger
    than any processor's, in fp16 and in 8 bits.

    Requests' blocks lie in runs of eight, as the engine hands them out, or each alone: a full and
    much used cache.
    """
    library, found = build.library(), []
    for (name, (heads, kv_heads, d)), bits in itertools.product(HEADS.items(), (16, 8)):
        per_block = kv_heads * (4 * BLOCK * d if bits == 16 else 2 * BLOCK * d + SCALE_BYTES)
        n_blocks = 2 * FAR // per_block // RUN * RUN
        data = np.empty(n_blocks * per_block, np.uint8)
        cache = _Cache(data.ctypes.data, n_blocks, kv_heads, BLOCK, d, bits)
        write_us = _fill(library, cache, tries)
        q, out = torch.randn(heads, d), torch.empty(heads, d)
        for run, n_seen in itertools.product((RUN, 1), (256, 1024, 4096)):
            runs = np.random.default_rng(0).permutation(n_blocks // run)
            order = (runs[:, None] * run + np.arange(run)).reshape(-1).astype(np.int32)
            n = n_blocks // (n_seen // BLOCK)
            limit, blocks = reads.gb_s(1), _blocks_gb_s(library, cache, order, per_block, tries)
            args = (byref(cache), c_void_p(order.ctypes.data), n, n_seen, heads,
                    c_void_p(q.data_ptr()), ctypes.c_float(0.125),
                    c_void_p(out.data_ptr()))  # fmt: skip
            one_s = best_s(partial(library.paged_attention_run_all, *args), tries) / n
            n_bytes, macs = n_seen // BLOCK * per_block, 2 * n_seen * heads * d
            limit_s = max(n_bytes / limit, macs / gmac_s) / 1e9
            found.append(
                {
                    "model": name,
                    "bits": bits,
                    "n_seen": n_seen,
                    "run": run,
                    "write_us": write_us,
                    "us": 1e6 * one_s,
                    "gb_s": n_bytes / one_s / 1e9,
                    "percent_of_bandwidth": 100 * n_bytes / one_s / 1e9 / limit,
                    "percent_of_blocks": 100 * n_bytes / one_s / 1e9 / blocks,
                    "gmac_s": macs / one_s / 1e9,
                    "percent_of_limit": 100 * limit_s / one_s if bits == 16 else None,
                }
            )
    return found


def _fill(library: ctypes.CDLL, cache: _Cache, tries: int) -> float:
    """Writes the same key and value to every position; microseconds of a position's kv_write."""
    key, value = torch.randn(2, cache.kv_heads, cache.d) * 0.1
    pointers = c_void_p(key.data_ptr()), c_void_p(value.data_ptr())
    write = partial(library.paged_attention_write_all, byref(cache), *pointers)
    return 1e6 * best_s(write, tries) / float(cache.n_blocks * cache.block_size)


def _blocks_gb_s(
    library: ctypes.CDLL, cache: _Cache, order: np.ndarray, n_bytes: int, tries: int
) -> float:
    """What one thread reads of these blocks in this order, asked for ahead or not."""
    library.native_read_blocks.restype = ctypes.c_uint64
    args = c_void_p(cache.data), c_void_p(order.ctypes.data), ctypes.c_int64(len(order))
    took = (
        best_s(partial(library.native_read_blocks, *args, ctypes.c_int64(n_bytes), ask), tries)
        for ask in (0, 1)
    )
    return float(len(order) * n_bytes / min(took) / 1e9)


def step(model: str, store: ModelStore, tries: int) -> dict[str, Any]:
    """One row's decode step at 200 positions, one thread: native, Python's part, company."""
    path = store.path(model)
    file = next(path.glob("*.gguf")) if path.is_dir() else path
    runner = Runner.load(file, n_blocks=64, max_model_len=512, threads=1)
    row = Row((5,), 200, tuple(range(13)), None)
    batch = make_batch([row], [0])
    forward: Any = runner._forward
    ids, tables = batch.token_ids, [row.blocks]
    native = forward._decoder.run
    inner = best_s(lambda: native(ids, batch.positions, batch.ends, tables, batch.wanted), tries)
    whole = best_s(lambda: runner.logits([row]), tries)
    quiet, beside = [], []
    for _ in range(max(3, tries // 10)):
        quiet.append(_median_s(lambda: runner.logits([row]), 20))
        with busy_thread(0.3):
            beside.append(_median_s(lambda: runner.logits([row]), 20))
    return {
        "model": model,
        "native_ms": 1000 * inner,
        "step_ms": 1000 * whole,
        "python_percent": 100 * (1 - inner / whole),
        "beside_a_busy_thread": statistics.median(beside) / statistics.median(quiet),
    }


def _median_s(call: Call, n: int) -> float:
    spent = []
    for _ in range(n):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


@contextmanager
def busy_thread(share: float, period_s: float = 0.01) -> Iterator[None]:
    """Another thread of this process that runs Python for `share` of every period."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            until = time.perf_counter() + share * period_s
            n = 0
            while time.perf_counter() < until:
                n += 1
            time.sleep((1 - share) * period_s)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def show(body: dict[str, Any]) -> None:
    for threads, (low, high) in body["read_gb_s"].items():
        print(f"memory reads: {low:.1f} to {high:.1f} GB/s, threads: {threads}")
    print(f"{body['fma_gmac_s']:.0f} GMAC/s in fp32\n")
    print(f"{'linear_group':24}{'bits':>5}{'threads':>8}" + "".join(f"{n:>16}" for n in ROWS))
    print(f"{'':37}" + "".join(f"{'row' if n == 1 else 'rows':>16}" for n in ROWS))
    rows = body["linear_group"]
    for key in dict.fromkeys((r["shape"], r["bits"], r["threads"]) for r in rows):
        cells = []
        for r in (r for r in rows if (r["shape"], r["bits"], r["threads"]) == key):
            if r["rows"] == 1:
                cells.append(f"{r['gb_s']:.1f} GB/s {r['percent_of_bandwidth']:.0f} %")
            else:
                peer = f" {r['times_fbgemm']:.2f}x" if "times_fbgemm" in r else ""
                cells.append(f"{r['gmac_s']:.0f} GMAC/s{peer}")
        print(f"{key[0]:24}{key[1]:>5}{key[2]:>8}" + "".join(f"{c:>16}" for c in cells))
    print("  GMAC/s 1.00x: as fast as fbgemm with per-row scales\n")
    for r in body["paged_attention"]:
        print(
            f"paged_attention {r['model']:10} {r['bits']:2} bits {r['n_seen']:4} positions, blocks "
            f"{'in runs of 8' if r['run'] > 1 else 'scattered   '} {r['us']:6.1f} us "
            f"{r['gb_s']:4.1f} GB/s {r['percent_of_bandwidth']:2.0f} %, "
            f"{r['percent_of_blocks']:3.0f} % of reading these blocks  {r['gmac_s']:4.1f} GMAC/s"
            + (f", {r['percent_of_limit']:.0f} % of the nearer limit" if r["bits"] == 16 else "")
            + f"; kv_write {r['write_us']:.2f} us a position"
        )
    for r in body["step"]:
        print(
            f"step {r['model']:14} native {r['native_ms']:.2f} ms, with Python {r['step_ms']:.2f} "
            f"({r['python_percent']:.1f} %), beside a thread 30 % busy in Python "
            f"{r['beside_a_busy_thread']:.2f} times as long"
        )


def main() -> None:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.bench kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--quick", action="store_true", help="fewer tries: orientation only")
    p.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some of its parts")
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    tries = 2 if a.quick else 5
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as the server does
    library = build.library()
    reads = Reads(library, tries)
    body: dict[str, Any] = {
        "hardware": hardware(),
        "kernels": os.environ.get("VOICE_AGENT_NATIVE_KERNELS", build.usable_levels()[0]),
    }
    print(f"{body['hardware']}; {body['kernels']}")
    body["linear_group"] = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for bits in (4, 5, 8):
            if f"linears{threads}" in a.only:
                body["linear_group"] += linears(bits, threads, tries, reads)
    torch.set_num_threads(1)
    body["fma_gmac_s"] = fma_rate(library, 2 * tries)
    body["paged_attention"] = []
    if "attention" in a.only:
        body["paged_attention"] = attention(tries, reads, body["fma_gmac_s"])
    body["read_gb_s"] = {str(n): (min(seen), max(seen)) for n, seen in reads.seen.items() if seen}
    store = ModelStore()
    body["step"] = []
    if "step" in a.only:
        body["step"] = [step(m, store, 10 * tries) for m in MODELS if store.present(m)]
    show(body)
    write_json(a.json, body)


if __name__ == "__main__":
    main()
