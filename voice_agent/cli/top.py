"""`voice-agent top`: the operator's view in a terminal, from the data of `/ops`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from voice_agent.cli.server_api import ServerApi
from voice_agent.config import Config
from voice_agent.errors import InternalError

KV_PARTS = (("pinned", "blue"), ("held", "green"), ("cached", "cyan"), ("fenced", "yellow"))
BAR = 40
REFUSALS = 3
Seen = Mapping[str, Any]


def run_top(
    config: Config,
    every_s: float,
    *,
    once: bool,
    as_json: bool,
    server: str | None,
    key: str | None,
) -> None:
    """Until Ctrl-C, or one look. A server that goes away is waited for. Raises as `ServerApi.get`,
    the first time."""
    api = ServerApi(config, server, key)
    seen = api.get("/api/ops")
    if as_json:
        json.dump(seen, sys.stdout, indent=1)
        print()
        return
    console = Console()
    if once:
        console.print(screen(seen, api.base))
        return
    with Live(screen(seen, api.base), console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.refresh()
            time.sleep(every_s)
            try:
                live.update(screen(api.get("/api/ops"), api.base))
            except InternalError:
                live.update(Text(f"{api.base} does not answer", style="bold red"))


def screen(seen: Seen, base: str) -> RenderableType:
    """One look at a server."""
    lines = (*_load(seen["load"]), *_memory(seen["kv"]), *_queue(seen["waiting"]))
    parts = (*lines, _calls(seen["live"]), _stages(seen))
    return Group(_head(seen, base), *parts)


def _head(seen: Seen, base: str) -> Text:
    calls = seen["calls"]
    state, style = (
        ("draining", "bold yellow") if seen["draining"]
        else ("ready", "bold green") if seen["ready"] else ("loading", "bold yellow")
    )  # fmt: skip
    head = Text.assemble((state, style), f"  {base}  calls {calls['live']} of {calls['limit']}")
    head.append(f"  turned away {calls['refused']}", "red" if calls["refused"] else "")
    head.append(f"  early work {seen['early_work']}")
    return head


def _load(load: Mapping[str, Any]) -> list[Text]:
    """What load has stopped, what is predicted, and who was turned away last."""
    use = ", ".join(f"{name} {share} %" for name, share in load["stages"].items())
    told = Text(f"stopped {load['stopped']}  answer {load['answer_ms']} ms predicted, ")
    told.append(
        f"{load['with_one_more_ms']} ms with one call more  waiting {load['waiting']}  {use}"
    )
    refused = [made for made in load["decisions"] if not made["taken"]][:REFUSALS]
    lines = [f"{m['ago_s']:.0f} s ago: {m['transport']} turned away: {m['why']}" for m in refused]
    return [told, *(Text(line, style="red") for line in lines)]


def _memory(kv: Mapping[str, int] | None) -> list[Text]:
    """The engine's cache as a bar; pinned blocks are among those cached or held, shown once."""
    if not kv:
        return []
    parts = {**kv, "cached": max(0, kv["cached"] - kv["pinned"])}
    bar = Text("KV ")
    used = 0
    for name, colour in KV_PARTS:
        n = round(BAR * parts[name] / kv["total"])
        bar.append("█" * min(n, BAR - used), colour)
        used = min(BAR, used + n)
    bar.append("·" * (BAR - used))
    told = ", ".join(f"{kv[name]} {name}" for name, _ in KV_PARTS)
    bar.append(f"  {kv['total']} blocks: {kv['free']} free, {told}")
    return [bar]


def _queue(waiting: list[Mapping[str, Any]]) -> list[Text]:
    """Who waits for a line, the first one first."""
    told = [
        f"{one['waited_s']:.0f} s"
        + (" (a line is kept)" if one["line_kept"] else f" (about {one['wait_s']:.0f} s more)")
        for one in waiting
    ]
    return [Text(f"queue: {', '.join(told)}")] if told else []


def _calls(live: list[Mapping[str, Any]]) -> RenderableType:
    if not live:
        return Text("nobody is on the line", style="dim")
    table = Table(box=None, pad_edge=False)
    for column in ("agent", "transport", "age", "caller", "floor", "turns", "voice to voice", "id"):
        table.add_column(column, overflow="fold")
    for call in live:
        ms = call.get("voice_to_voice_ms")
        age, kept_s = int(call["age_s"]), call["kept_s"]
        table.add_row(
            call["agent"] or "…",
            call["transport"],
            f"{age // 60}:{age % 60:02}",
            call["caller"] if kept_s is None else f"line lost, kept {kept_s:.0f} s",
            call["floor"],
            str(call["turns"]),
            f"{round(ms)} ms" if ms else "–",
            call["id"],
        )
    return table


def _stages(seen: Seen) -> RenderableType:
    boxes = []
    for heading, numbers in seen["stages"].items():
        table = Table(box=None, header_style="bold")
        table.add_column(heading)
        table.add_column(justify="right")
        for name, value in numbers.items():
            table.add_row(name.replace("_", " "), f"{value:,.10g}")
        boxes.append(table)
    return Columns(boxes, padding=(0, 3))
