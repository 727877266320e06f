"""`voice-agent loadtest`: simulated callers against a server; the work is in the package loadtest.

The only place that imports it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest import compare as comparing
from loadtest import plots, sweep, table
from loadtest.options import Options
from loadtest.report import write_json
from loadtest.run import prepare, run
from voice_agent.errors import UsageError


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_settings(given: list[str]) -> dict[str, str]:
    """`section.key=value` of the server's configuration. Raises UsageError VA531."""
    out = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {text!r}: write section.key=value", code="VA531")
        out[name.strip()] = value.strip()
    return out


def run_load(
    options: Options, json_file: Path | None, png: Path | None, page: Path | None
) -> Mapping[str, Any]:
    """`loadtest run`. Raises what `loadtest.run` raises."""
    if png is not None or page is not None:
        plots.check_plots()
    prepare(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server of a run ends with it
    body = asyncio.run(run(options, say))
    write_json(json_file, body)
    if png is not None:
        plots.write_png(body, png)
    if page is not None:
        plots.write_html(body, page)
    print("\n".join(table.table(body)))
    return body


def run_sweep(
    options: Options, objective: sweep.Objective, most: int, json_file: Path | None
) -> None:
    if most < 1:
        raise UsageError("--most must be at least 1", code="VA531")
    prepare(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    body = asyncio.run(sweep.sweep(options, objective, most, say))
    write_json(json_file, body)
    print("\n".join(sweep.table(body)))


def run_compare(a: Path, b: Path, at_least: float, json_file: Path | None) -> comparing.Comparison:
    found = comparing.compare(comparing.load_report(a), comparing.load_report(b), at_least=at_least)
    print("\n".join(comparing.table(found)))
    if json_file is not None:
        rows = [
            {"name": c.name, "a": c.a, "b": c.b, "interval": c.interval, "moved": c.moved}
            for c in found.changes
        ]
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({"changes": rows, "differ": found.differ}, indent=1) + "\n")
    return found
