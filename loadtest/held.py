"""What a server's process holds, seen from inside: objects, tasks, threads, descriptors, heap.

A leak of one object a turn shows here in minutes, long before it shows in resident memory, which
also holds what allocators keep for later.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Held:
    """at_s: of the machine's monotonic clock, as an event loop's. objects: of Python that the
    collector knows and has not frozen; tasks: of them, asyncio's, done or not. blocks: that
    Python's small-object allocator has given out. heap_mb: that `malloc` has given out, in all
    threads (glibc's mallinfo2(3)). None of it is garbage: a collection comes first. threads, files:
    with all child processes (media workers)."""

    at_s: float
    objects: int
    tasks: int
    blocks: int
    heap_mb: float
    threads: int
    files: int


def look() -> Held:
    gc.collect()
    found = gc.get_objects()
    # By its type: a proxy asked for its class may answer with another's, or with a warning.
    n_objects, n_tasks = len(found), sum(issubclass(type(one), asyncio.Task) for one in found)
    del found
    threads = files = 0
    own = psutil.Process()
    for one in (own, *own.children(recursive=True)):
        try:
            threads += one.num_threads()
            files += one.num_fds()
        except psutil.NoSuchProcess:
            continue
    blocks = sys.getallocatedblocks()
    return Held(time.monotonic(), n_objects, n_tasks, blocks, heap_mb(), threads, files)


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


def heap_mb() -> float:
    """0.0 where the C library is not glibc."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0.0
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return float(found.uordblks + found.hblkhd) / 2**20


def keep_looking(path: Path, period_s: float) -> None:
    """A line of JSON for each look, from a thread of its own, as long as the process lives."""

    def run() -> None:
        with path.open("a", encoding="utf-8", buffering=1) as out:
            while True:
                time.sleep(period_s)
                out.write(json.dumps(asdict(look())) + "\n")

    threading.Thread(target=run, name="held", daemon=True).start()


def read(path: Path) -> list[Held]:
    """A last line that was being written is left out."""
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [Held(**json.loads(line)) for line in lines]
