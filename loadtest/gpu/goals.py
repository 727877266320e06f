"""What a first run on an H200 should reach, read off the phases' results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Phases = dict[str, Any]
REACHED, MISSED, UNKNOWN = "reached", "not reached", "not measured"


@dataclass(frozen=True, slots=True)
class Goal:
    """value: what was measured, None if it was not. less: whether it must be at most the limit."""

    what: str
    limit: float
    value: float | None
    less: bool = True

    @property
    def state(self) -> str:
        if self.value is None:
            return UNKNOWN
        good = self.value <= self.limit if self.less else self.value >= self.limit
        return REACHED if good else MISSED

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.4g}"
        sign = "<=" if self.less else ">="
        return f"{self.state:13}{self.what}: {value} ({sign} {self.limit:g})"


def goals(phases: Phases) -> list[Goal]:
    """In the order they are printed."""
    return [
        Goal(
            "attention, 32 x 1024, % of copy bandwidth", 70.0,
            _found(phases, "kernels tuned", "rows", _attention, "percent_of_copy")
            or _found(phases, "kernels", "rows", _attention, "percent_of_copy"),
            less=False,
        ),
        Goal(
            "decode step of the 8B shape at batch 32, times its floor", 1.6,
            _found(phases, "graphs", "rows", _step_32, "times_floor"),
        ),
        Goal("32 calls, TTFT p99, ms", 84.0, _call(phases, 32, "ttft_ms", "p99")),
        Goal("32 calls, TTFT of a later turn p50, ms", 40.0,
             _call(phases, 32, "cached_ttft_ms", "p50")),
        Goal("32 calls, gap between tokens p99, ms", 31.0, _call(phases, 32, "gap_ms", "p99")),
        Goal("74 calls, failed turns", 0.0,
             _found(phases, "engine 8B", "rows", lambda r: r["calls"] == 74, "n_failed")),
        Goal("Kokoro's first sound, 5 words, p50, ms", 45.0, _first_sound(phases)),
    ]  # fmt: skip


def _rows(phases: Phases, phase: str, key: str) -> Iterator[Any]:
    yield from phases.get(phase, {}).get(key, ())


def _found(
    phases: Phases, phase: str, key: str, wanted: Callable[[Any], bool], value: str
) -> float | None:
    return next((float(r[value]) for r in _rows(phases, phase, key) if wanted(r)), None)


def _attention(row: Any) -> bool:
    return bool(row["op"] == "paged_attention_decode" and row["shape"] == "8B 32 x 1024")


def _step_32(row: Any) -> bool:
    return bool(row["model"] == "8B" and row["graphs"] and row["batch"] == 32)


def _call(phases: Phases, calls: int, kind: str, percentile: str) -> float | None:
    for row in _rows(phases, "engine 8B", "rows"):
        if row["calls"] == calls and row[kind][percentile] is not None:
            return float(row[kind][percentile])
    return None


def _first_sound(phases: Phases) -> float | None:
    for row in _rows(phases, "voice", "rows"):
        if row["graphs"] and row["words"] == 5:
            return float(row["ms"]["p50"])
    return None
