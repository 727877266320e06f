"""The engine beside its peers: `python -m loadtest.bench engine [--only NAME ...] [--quick]`.

Sections: quality, bound, first, fixed, spoken (beside the peers); static, radix, long, playback,
aloud, plan, cancel, v1, call (our own modes). Peers are prepared by
`python -m loadtest.bench peers`. The machine should be quiet: other processes using under 0.15 of a
core. Sections run one at a time add up in the JSON file; `--show` prints all that it holds and
measures nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
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
    "aloud": ("aloud", "aloud", "show"),
    "plan": ("planning", "planning", "show"),
    "cancel": ("cancel", "cancel", "show"),
    "v1": ("door", "door", "show"),
    "call": ("call", "call", "show"),
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
    body = kept(a.json, a.model)
    if a.show:
        for name in SECTIONS:
            if name in body:
                show_section(name, body[name])
        return 0
    body |= {"hardware": hardware(), "seed": a.seed}
    print(f"{body['hardware']}; {a.model}")
    bench = Bench.open(options)
    try:
        for name in a.only or SECTIONS:
            body[name] = run_section(bench, name)
            write_json(a.json, body)
    finally:
        bench.close()
    return 0


def kept(path: Path | None, model: str) -> dict[str, Any]:
    """What earlier runs left in the file; another model's figures end the program."""
    body: dict[str, Any] = {"model": model}
    if path is not None and path.exists():
        body |= json.loads(path.read_text("utf-8"))
        if body["model"] != model:
            raise SystemExit(f"{path} holds figures of {body['model']}, not of {model}")
    return body


def run_section(bench: Bench, name: str) -> dict[str, Any]:
    """Measure and print one section."""
    where, measure, _ = SECTIONS[name]
    module = importlib.import_module(f"loadtest.bench.llm.{where}")
    print(f"\n{name} ...", flush=True)
    machine, start = hardware(), time.perf_counter()
    work: Callable[[Bench], dict[str, Any]] = getattr(module, measure)
    body = work(bench)
    body |= {
        "took_s": time.perf_counter() - start,
        "hardware": machine,
        "not_run": list(bench.not_run),
    }
    show_section(name, body)
    return body


def show_section(name: str, body: dict[str, Any]) -> None:
    where, _, show = SECTIONS[name]
    print(f"\n== {name} ({body['hardware']} when it began; {body['took_s']:.0f} s)")
    getattr(importlib.import_module(f"loadtest.bench.llm.{where}"), show)(body)
    sys.stdout.flush()


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
    p.add_argument("--json", type=Path, help="sections are added to those it holds")
    p.add_argument("--show", action="store_true", help="print what the JSON file holds")
    return p.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
