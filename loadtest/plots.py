"""A run as pictures: PNG, and one HTML page that needs nothing else."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.figures import SPLIT
from loadtest.table import table
from voice_agent.errors import UsageError

STYLE = """body{font:15px system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
pre{background:#f5f5f5;padding:1em;overflow:auto}svg{max-width:100%;height:auto}"""


def check_plots() -> None:
    """Raises UsageError VA534 before a run whose pictures could not be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "plots need matplotlib: pip install 'voice-agent[loadtest]'", code="VA534"
        ) from error


def figure(body: Mapping[str, Any]) -> Any:
    """Three panels: distribution of voice to voice, its split, and turns over time."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(10, 9), layout="constrained")
    above, middle, below = drawn.subplots(3, 1, height_ratios=(3, 1.4, 2.6))
    _distribution(above, body)
    _split(middle, body)
    _over_time(below, body)
    drawn.suptitle(
        f"{body['calls']} calls, {body['scenario']}, {body['transport']}"
        + (", baseline" if body["baseline"] else "")
    )
    return drawn


def _distribution(axes: Any, body: Mapping[str, Any]) -> None:
    waits = sorted(t["v2v_ms"] for t in body["raw"]["turns"] if t["v2v_ms"] is not None)
    n = len(waits)
    axes.step(waits, [(i + 1) / n for i in range(n)], where="post", color="#2563eb")
    for height, name in ((0.02, "p50"), (0.25, "p95"), (0.5, "p99")):
        value = body["voice_to_voice_ms"][name]
        if value is not None:
            axes.axvline(value, color="#999", linewidth=0.8)
            axes.annotate(f"{name} {value:.0f}", (value, height), rotation=90, fontsize=8)
    axes.set(xlabel="voice to voice, ms", ylabel="share of turns", ylim=(0, 1.02))
    axes.set_xlim(left=0)


def _split(axes: Any, body: Mapping[str, Any]) -> None:
    split = body.get("split_ms") or {}
    names = [name for name in SPLIT if name in split]
    axes.barh(names, [split[n]["p95"] for n in names], color="#bfdbfe", label="p95")
    axes.barh(names, [split[n]["p50"] for n in names], color="#2563eb", label="p50")
    axes.invert_yaxis()
    axes.set(xlabel="ms of each stage, by the server's own record (they overlap)")
    if names:
        axes.legend(fontsize=8)


def _over_time(axes: Any, body: Mapping[str, Any]) -> None:
    turns = body["raw"]["turns"]
    for stuck, colour, label in ((False, "#2563eb", "answered"), (True, "#dc2626", "never")):
        own = [t for t in turns if t["stuck"] is stuck and t["v2v_ms"] is not None]
        axes.scatter(
            [t["at_s"] for t in own], [t["v2v_ms"] for t in own], s=14, color=colour, label=label
        )
    axes.set(xlabel="s of the run", ylabel="voice to voice, ms")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="upper left")
    live = axes.twinx()
    windows = body["raw"]["windows"]
    calls = [
        60 * w["minutes"] / max(1e-9, w["at_s"] - before)
        for w, before in zip(windows, [0.0, *(w["at_s"] for w in windows)], strict=False)
    ]
    live.plot([w["at_s"] for w in windows], calls, color="#16a34a", linewidth=1)
    live.set(ylabel="calls up")
    live.set_ylim(bottom=0)


def write_png(body: Mapping[str, Any], path: Path) -> None:
    _write(path, _image(body, "png"))


def write_html(body: Mapping[str, Any], path: Path) -> None:
    """The table and the picture (inline SVG); nothing is loaded from anywhere."""
    svg = _image(body, "svg").decode()
    svg = svg[svg.index("<svg") :]
    text = html.escape("\n".join(table(body)))
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Load test</title>'
        f"<style>{STYLE}</style><h1>Load test</h1><pre>{text}</pre>{svg}</html>\n"
    )
    _write(path, page.encode())


def _image(body: Mapping[str, Any], kind: str) -> bytes:
    out = io.BytesIO()
    figure(body).savefig(out, format=kind, dpi=120)
    return out.getvalue()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
