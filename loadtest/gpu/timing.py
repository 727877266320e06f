"""How long a call takes on the device, without what launching it costs the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], object]
FAR = 4
"""Inputs are rotated among copies of so many times the last cache, so that memory is read."""


def median_ms(calls: Sequence[Call], device: torch.device, *, tries: int = 10) -> float:
    """Milliseconds of one of the calls, which do the same on different memory.

    On a GPU all of them are recorded in one CUDA graph, replayed `tries` times; what can't be
    recorded is launched one by one. On a CPU each is timed by the wall clock.
    """
    with torch.inference_mode():
        return _median_ms(calls, device, tries)


def _median_ms(calls: Sequence[Call], device: torch.device, tries: int) -> float:
    for call in calls:
        call()
    if device.type != "cuda":
        spent = []
        for _ in range(tries):
            start = time.perf_counter()
            for call in calls:
                call()
            spent.append(1000.0 * (time.perf_counter() - start) / len(calls))
        return statistics.median(spent)
    torch.cuda.synchronize()
    again = _recorded(calls)
    again()
    spent = []
    for _ in range(tries):
        begin, end = _event(), _event()
        begin.record()
        again()
        end.record()
        end.synchronize()
        spent.append(begin.elapsed_time(end) / len(calls))
    return statistics.median(spent)


def copies(n_bytes: int, device: torch.device, most: int = 256) -> int:
    """How many sets of inputs of n_bytes no cache holds together; `most`, for tiny ones."""
    if device.type != "cuda":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(1, min(most, -(-FAR * int(cache) // max(1, n_bytes))))


def _recorded(calls: Sequence[Call]) -> Call:
    def all_of_them() -> None:
        for call in calls:
            call()

    stream: Any = torch.cuda.Stream
    side = stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(side):
            all_of_them()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            all_of_them()
    except RuntimeError:
        torch.cuda.synchronize()
        return all_of_them
    return graph.replay


def _event() -> Any:
    event: Any = torch.cuda.Event
    return event(enable_timing=True)
