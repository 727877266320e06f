"""What every benchmark prints: the machine, percentiles with their n, and JSON beside the table."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil


def hardware() -> str:
    """Cores and processor name."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{psutil.cpu_count()} cores {model}, load {psutil.getloadavg()[0]:.1f}"


def quantile(values: Sequence[float], q: float) -> float:
    """Nearest rank. Raises ValueError without values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """n, p50, p95, p99 and max; a percentile only when n >= 10 / (1 - p)."""
    n = len(values)
    out: dict[str, float | int | None] = {"n": n, "p50": quantile(values, 0.5) if n else None}
    for name, q in (("p95", 0.95), ("p99", 0.99)):
        out[name] = quantile(values, q) if n >= 10 / (1 - q) - 1e-9 else None
    out["max"] = max(values) if n else None
    return out


def write_json(path: Path | None, body: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
