"""Whether a server grows: `make soak` (2 hours), `make soak-short` (3 minutes).

Callers come, talk and go (scenario `soak`, real models, WebSocket) while the memory, threads and
descriptors of the server and its workers are watched once a second. After a warm-up a line is laid
through the memory; it grows if its slope's confidence interval (99 %) lies above zero. The KV cache
is kept small, so that the warm-up fills it: memory that is only touched for the first time would
look like growth.

Ends with status 1 if memory grows, a turn got no answer, or a call broke.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from loadtest.figures import Raw, report
from loadtest.options import Options
from loadtest.report import hardware, write_json
from loadtest.run import field_of, notes, prepare, talk
from loadtest.slope import Slope, slope
from loadtest.watch import Sample

SETTINGS = {"engine.kv_mb": "64"}
WARM_UP = 1 / 3
"""Of the run, and at most `WARM_UP_S`."""
WARM_UP_S = 900.0
COUNT_S = 10.0


class Counts:
    """Threads and open descriptors of a process and its children, now and then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.threads: list[int] = []
        self.files: list[int] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            threads, files = self._look()
            self.threads.append(threads)
            self.files.append(files)
            await asyncio.sleep(COUNT_S)

    def _look(self) -> tuple[int, int]:
        threads = files = 0
        try:
            process = psutil.Process(self._pid)
            for one in (process, *process.children(recursive=True)):
                threads += one.num_threads()
                files += one.num_fds()
        except psutil.NoSuchProcess:
            return threads, files
        return threads, files


def memory_slope(samples: Sequence[Sample], seconds: float) -> Slope:
    """Of the server's resident memory, MB an hour. Raises ValueError for too few samples."""
    seen = [(s.at_s, s.memory_mb) for s in samples if s.memory_mb is not None]
    warm_up_s = min(WARM_UP_S, WARM_UP * seconds)
    return slope([t for t, _ in seen], [mb for _, mb in seen], warm_up_s=warm_up_s)


async def soak(options: Options) -> dict[str, Any]:
    """The report of the run, with what grew."""
    ready = prepare(options)
    async with field_of(ready) as field:
        assert field.watch.pid is not None
        counts = Counts(field.watch.pid)
        counting = asyncio.create_task(counts.run())
        logs, start_s = await talk(ready, field)
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
    raw = Raw(
        list(zip(ready.calls, logs, strict=True)), field.watch, start_s, options.seconds,
        field.records(), None, notes(ready, logs),
    )  # fmt: skip
    found = memory_slope(field.watch.samples, options.seconds)
    body = report(options, hardware(), raw)
    return body | {
        "memory_mb_per_hour": {"slope": found.per_hour, "low": found.low, "high": found.high},
        "memory_grows": found.grows,
        "memory_mb": [round(s.memory_mb, 1) for s in field.watch.samples if s.memory_mb],
        "threads": counts.threads,
        "files": counts.files,
    }


def bad(body: dict[str, Any]) -> list[str]:
    """Why the run is not good; nothing: it is."""
    out = []
    if body["memory_grows"]:
        out.append("memory grows")
    if body["stuck"]:
        out.append(f"{body['stuck']} turns without an answer")
    out += [f"a call failed: {why}" for why in body["failed"]]
    out += [f"a call was lost: {why}" for why in body["lost"]]
    return out


def show(body: dict[str, Any]) -> None:
    m, memory = body["memory_mb_per_hour"], body["memory_mb"]
    print(f"{body['hardware']}; {body['calls']} calls at once, {body['seconds']:.0f} s")
    print(
        f"memory {memory[0]:.0f} MB at the start, {memory[-1]:.0f} at the end; after the warm-up "
        f"{m['slope']:+.1f} MB an hour ({m['low']:+.1f} to {m['high']:+.1f}, 99 %)"
    )
    print(
        f"threads {body['threads'][0]} to {body['threads'][-1]}, descriptors {body['files'][0]} to "
        f"{body['files'][-1]}; {body['turns']} turns, stuck {body['stuck']}"
    )
    print("; ".join(bad(body)) or "good: nothing grows")


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--minutes", type=float, default=120.0)
    p.add_argument("--calls", type=int, default=2)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path)
    a = p.parse_args(argv)
    options = Options(
        calls=a.calls, seconds=60 * a.minutes, transport="ws", scenario="soak", answers="model",
        seed=a.seed, settings=SETTINGS,
    )  # fmt: skip
    body = asyncio.run(soak(options))
    show(body)
    write_json(a.json, body)
    return 1 if bad(body) else 0


if __name__ == "__main__":
    raise SystemExit(main())
