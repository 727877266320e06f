"""The engine beside its peers: `python -m loadtest.bench engine [--only NAME ...] [--quick]`.

Sections: quality, bound, first, fixed, spoken (beside the peers); static, radix, long, playback,
plan, cancel, v1 (our own modes). Peers are prepared by `python -m loadtest.bench peers`. The
machine should be quiet: other processes using under 0.15 of a core.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.llm.bench import Bench, Options
from loadtest.report import hardware, write_json

Section = tuple[str, str, str]
"""(module, function that measures, function that prints)"""

SECTIONS: dict[str, Section] = {
    "quality": ("quality", "quality", "show"),
    "bound": ("bound", "bound", "show"),
    "first": ("decode", "first_text", "show_first"),
    "fixed": ("decode", "fixed", "show_sweep"),
    "spoken": ("decode", "spoken", "show_sweep"),
    "static": ("static", "static", "show"),
    "radix": ("prefixes", "prefixes", "show"),
    "long": ("long_prompt", "long_prompt", "show"),
    "playback": ("playback", "playback", "show"),
    "plan": ("planning", "planning", "show"),
    "cancel": ("cancel", "cancel", "show"),
    "v1": ("door", "door", "show"),
}


def main(argv: Sequence[str] | None = None) -> int:
    a = _arguments(argv)
    options = Options(
        model=a.model,
        rounds=a.rounds,
        concurrency=tuple(a.concurrency or ((1, 4) if a.quick else (1, 4, 8, 16, 32))),
        peers=not a.no_peers,
        all_peers=a.all_peers,
        quick=a.quick,
        seed=a.seed,
    )
    body: dict[str, Any] = {"hardware": hardware(), "model": a.model, "seed": a.seed}
    print(f"{body['hardware']}; {a.model}")
    bench = Bench.open(options)
    try:
        for name in a.only or SECTIONS:
            body[name] = run_section(bench, name)
            body["not_run"] = bench.not_run
            write_json(a.json, body)
    finally:
        bench.close()
    return 0


def run_section(bench: Bench, name: str) -> dict[str, Any]:
    """Measure and print one section."""
    where, measure, show = SECTIONS[name]
    module = importlib.import_module(f"loadtest.bench.llm.{where}")
    print(f"\n== {name}", flush=True)
    start = time.perf_counter()
    work: Callable[[Bench], dict[str, Any]] = getattr(module, measure)
    body = work(bench)
    body["took_s"] = time.perf_counter() - start
    getattr(module, show)(body)
    print(f"  ({body['took_s']:.0f} s)", flush=True)
    return body


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.bench engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--model", default="smollm2-135m", help="a registry name")
    p.add_argument("--only", nargs="*", choices=SECTIONS, metavar="NAME")
    p.add_argument("--quick", action="store_true", help="seconds, to see that everything runs")
    p.add_argument("--rounds", type=int, default=0, help="default: each section's own")
    p.add_argument("--concurrency", type=int, nargs="*")
    p.add_argument("--no-peers", action="store_true")
    p.add_argument("--all-peers", action="store_true", help="the slow settings too")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path)
    return p.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
