"""Whether a server grows: `make soak` (2 hours), `make soak-short` (3 minutes).

Callers come, talk and go (scenario `soak`, real models, WebSocket) while what the server holds is
looked at every few seconds (`loadtest.held`), and resident memory, of its workers too, once a
second. After a warm-up a line is laid through each, beside the number of live calls; it grows if
its slope's confidence interval (99 %) lies above zero, and by more than `LEAST`. Resident memory is
judged from `RESIDENT_FROM_S` on: allocators and libraries find their size, and the KV cache fills.
Nothing here is a time: a busy machine makes turns fewer, and no count larger. The KV cache is kept
small, and nobody is turned away because the machine is busy.

Ends with status 1 if anything grows, a turn got no answer, or a call broke.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.callers.caller import CallLog
from loadtest.figures import Raw, report
from loadtest.held import Held, read
from loadtest.options import Options
from loadtest.report import hardware, write_json
from loadtest.run import field_of, notes, prepare, talk
from loadtest.slope import Slope, slope
from loadtest.watch import Sample

SETTINGS = {"engine.kv_mb": "64", "load.admit_ms": "60000", "target_ms": "10000"}
WARM_UP = 1 / 3
"""Of the run, and at most `WARM_UP_S`."""
WARM_UP_S = 900.0
COUNTS = ("objects", "tasks", "blocks", "heap_mb", "threads", "files")
LEAST = {"memory_mb": 4.0, "heap_mb": 4.0, "objects": 500.0, "blocks": 20_000.0}
"""A rise in all of the judged time that is not told: windows of figures that are kept and the index
of the KV cache fill for so long. Of the others: half of one."""
RESIDENT_FROM_S = 3600.0
LOOKS = 72
"""At what is held, in a run."""
LEAST_LOOK_S = 2.0
PATIENCE_S = 60.0
"""A busy machine answers late; a server that has lost a turn never does."""


def growth(
    samples: Sequence[Sample], held: Sequence[Held], logs: Sequence[CallLog], seconds: float
) -> dict[str, Slope]:
    """By name, an hour: resident MB, and what is held. Raises ValueError for too few samples."""
    warm_up_s = min(WARM_UP_S, WARM_UP * seconds)
    begin_s = samples[0].at_s + warm_up_s if samples else 0.0
    resident = [(s.at_s, s.memory_mb) for s in samples if s.memory_mb is not None]
    series = {"memory_mb": resident}
    series |= {name: [(h.at_s, getattr(h, name)) for h in held] for name in COUNTS}
    out = {}
    for name, points in series.items():
        late = [(t, v) for t, v in points if t >= begin_s]
        times = [t for t, _ in late]
        beside = [float(live(logs, t)) for t in times]
        values, least = [v for _, v in late], LEAST.get(name, 0.5)
        out[name] = slope(times, values, warm_up_s=0.0, beside=beside, least=least)
    return out


def live(logs: Sequence[CallLog], at_s: float) -> int:
    """Calls that are up then."""
    return sum(
        log.up_s is not None and log.up_s <= at_s < (log.down_s or float("inf")) for log in logs
    )


async def soak(options: Options) -> dict[str, Any]:
    """The report of the run, with what grew."""
    ready = prepare(options)
    async with field_of(ready) as field:
        logs, start_s = await talk(ready, field)
        assert field.held is not None
        held = read(field.held)
    held = [h for h in held if start_s <= h.at_s <= start_s + options.seconds]
    raw = Raw(
        list(zip(ready.calls, logs, strict=True)), field.watch, start_s, options.seconds,
        field.records(), None, notes(ready, logs),
    )  # fmt: skip
    found = growth(field.watch.samples, held, logs, options.seconds)
    return report(options, hardware(), raw) | {
        "growth": {name: asdict(one) | {"grows": one.grows} for name, one in found.items()},
        "memory_mb": [round(s.memory_mb, 1) for s in field.watch.samples if s.memory_mb],
        "held": [asdict(one) for one in held],
    }


def bad(body: dict[str, Any]) -> list[str]:
    """Why the run is not good; nothing: it is."""
    out = [
        f"{name} grows"
        for name, one in body["growth"].items()
        if one["grows"] and (name != "memory_mb" or body["seconds"] >= RESIDENT_FROM_S)
    ]
    if body["stuck"]:
        out.append(f"{body['stuck']} turns without an answer")
    out += [f"a call failed: {why}" for why in body["failed"]]
    out += [f"a call was lost: {why}" for why in body["lost"]]
    return out


def show(body: dict[str, Any]) -> None:
    print(f"{body['hardware']}; {body['calls']} calls at once, {body['seconds']:.0f} s")
    print(f"{'':12}{'start':>9}{'end':>9}   an hour, after the warm-up (99 %)")
    series = {"memory_mb": body["memory_mb"]}
    series |= {name: [h[name] for h in body["held"]] for name in COUNTS}
    for name, one in body["growth"].items():
        steps = "".join(f", a step of {step:+.1f}" for step in one["steps"])
        print(
            f"{name:12}{series[name][0]:>9.0f}{series[name][-1]:>9.0f}   {one['per_hour']:+.1f} "
            f"({one['low']:+.1f} to {one['high']:+.1f}){steps}"
        )
    n_calls = sum(call["start_s"] is not None for call in body["raw"]["calls"])
    print(f"{body['turns']} turns in {n_calls} calls, stuck {body['stuck']}")
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
    seconds = 60 * a.minutes
    options = Options(
        calls=a.calls, seconds=seconds, transport="ws", scenario="soak", answers="model",
        seed=a.seed, patience_s=PATIENCE_S, settings=SETTINGS,
        held_s=max(LEAST_LOOK_S, seconds / LOOKS),
    )  # fmt: skip
    body = asyncio.run(soak(options))
    show(body)
    write_json(a.json, body)
    return 1 if bad(body) else 0


if __name__ == "__main__":
    raise SystemExit(main())
