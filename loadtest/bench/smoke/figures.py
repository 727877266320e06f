"""A figure, and what the committed baseline says about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

BASELINE = Path(__file__).with_name("baseline.json")
_DIGITS = 4


class Better(StrEnum):
    """Which way is good."""

    HIGHER = "higher"
    LOWER = "lower"


class Verdict(StrEnum):
    OK = "ok"
    BETTER = "better"  # by more than may be chance: the baseline should say so
    WORSE = "worse"
    NEW = "new"  # the baseline does not have it
    MISSING = "missing"  # the baseline has it, and this run has not


@dataclass(frozen=True, slots=True)
class Figure:
    """slack: by what share of the baseline it may be worse, or better unremarked; 0 for a count
    that does not depend on the machine."""

    name: str
    value: float
    better: Better
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class Judged:
    """value, baseline: None where there is none."""

    name: str
    verdict: Verdict
    value: float | None
    baseline: float | None
    better: Better | None = None
    slack: float = 0.0

    @property
    def fails(self) -> bool:
        return self.verdict in (Verdict.WORSE, Verdict.NEW, Verdict.MISSING)

    def __str__(self) -> str:
        now, was = _shown(self.value), _shown(self.baseline)
        line = f"{self.verdict.upper():8}{self.name:44}{now:>12}{was:>12}"
        if self.better is None:
            return line
        return f"{line}   {self.better} is better, {100 * self.slack:.0f} % slack"


def judge(figures: Iterable[Figure], baseline: Mapping[str, float]) -> list[Judged]:
    """In the figures' order, then what they lack. Raises ValueError for a name given twice."""
    seen: set[str] = set()
    out = []
    for f in figures:
        if f.name in seen:
            raise ValueError(f"two figures are called {f.name}")
        seen.add(f.name)
        was = baseline.get(f.name)
        out.append(Judged(f.name, _verdict(f, was), f.value, was, f.better, f.slack))
    lacking = [name for name in baseline if name not in seen]
    return [*out, *(Judged(n, Verdict.MISSING, None, baseline[n]) for n in lacking)]


def _verdict(figure: Figure, was: float | None) -> Verdict:
    if was is None:
        return Verdict.NEW
    gain = figure.value - was if figure.better is Better.HIGHER else was - figure.value
    allowed = figure.slack * abs(was) + 10**-_DIGITS
    if abs(gain) <= allowed:
        return Verdict.OK
    return Verdict.BETTER if gain > 0 else Verdict.WORSE


def read(path: Path) -> dict[str, float]:
    """Raises OSError, and ValueError for something else than names with numbers."""
    data = json.loads(path.read_text("utf-8"))
    if not isinstance(data, dict) or not all(isinstance(v, int | float) for v in data.values()):
        raise ValueError(f"{path} is no baseline: it holds no numbers by name")
    return {str(name): float(value) for name, value in data.items()}


def write(path: Path, figures: Iterable[Figure]) -> None:
    values = {f.name: round(f.value, _DIGITS) for f in figures}
    path.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.{_DIGITS}g}" if value % 1 else f"{value:.0f}"
