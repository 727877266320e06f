"""Two runs side by side: what moved by more than chance, and which way.

Noise is estimated from the runs' own raw samples: turns are drawn again for waits, calls for holes,
seconds for CPU (the bootstrap). A count that must be 0 is worse as soon as it grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.figures import SCHEMA, cpu_per_minute, glitches_per_minute
from loadtest.numbers import PERCENTILES, difference, percentile
from voice_agent.errors import UsageError

BLOCK = 5
AT_LEAST = 0.05
"""A smaller change, as a share, is not worth a word even if it is no chance."""
SAME = ("scenario", "transport", "calls", "answers", "seed", "arrival", "models")
COUNTS = (
    "stuck", "cross_talk", "refused", "barge_ins_missed", "own_word_missing", "false_replies",
    "server_holes",
)  # fmt: skip
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """interval: 95 %, of b - a; None: no noise is known. moved: -1 better, 1 worse, 0 neither."""

    name: str
    a: float | None
    b: float | None
    interval: tuple[float, float] | None
    moved: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """differ: what the runs do not have in common, and so may explain a change."""

    changes: tuple[Change, ...]
    differ: tuple[str, ...]

    @property
    def worse(self) -> list[Change]:
        return [c for c in self.changes if c.moved > 0]


def load_report(path: Path) -> dict[str, Any]:
    """Raises UsageError VA536."""
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a run's JSON: {error}", code="VA536") from error
    if not isinstance(body, dict) or "raw" not in body or body.get("schema") != SCHEMA:
        raise UsageError(
            f"{path} is not the JSON of a run of this version: write one with "
            "`voice-agent loadtest run --json FILE`",
            code="VA536",
        )
    return body


def compare(a: Row, b: Row, *, at_least: float = AT_LEAST, seed: int = 0) -> Comparison:
    """b against a."""
    rng = np.random.default_rng(seed)
    changes = [
        *(
            _waits(a, b, f"voice_to_voice_ms {name}", q, "v2v_ms", rng, at_least)
            for name, q in PERCENTILES
        ),
        _waits(a, b, "barge_in_stop_ms p99", 0.99, "stop_ms", rng, at_least),
        *(_stage(a, b, stage, rng, at_least) for stage in _stages(a, b)),
        _holes(a, b, rng, at_least),
        _cpu(a, b, rng, at_least),
        *(_count(a, b, name) for name in COUNTS),
    ]
    pairs = {name: (a.get(name), b.get(name)) for name in SAME}
    pairs["hardware"] = _machine(a), _machine(b)
    differ = tuple(f"{name}: {x} / {y}" for name, (x, y) in pairs.items() if x != y)
    return Comparison(tuple(changes), differ)


def _machine(body: Row) -> str:
    """Without its load at that moment."""
    return str(body.get("hardware")).partition(", load")[0]


def _waits(
    a: Row, b: Row, name: str, q: float, key: str, rng: np.random.Generator, at_least: float
) -> Change:
    x, y = (
        [t[key] for t in body["raw"]["turns"] if t["measured"] and t[key] is not None]
        for body in (a, b)
    )
    fewest = 1 / (1 - q)  # else the percentile is the greatest value, and no noise can be told
    return _change(name, x, y, partial(percentile, q=q), rng, at_least, fewest)


def _stage(a: Row, b: Row, stage: str, rng: np.random.Generator, at_least: float) -> Change:
    x, y = (body["raw"]["stages"].get(stage, []) for body in (a, b))
    return _change(f"{stage} p50, ms", x, y, partial(percentile, q=0.5), rng, at_least)


def _stages(a: Row, b: Row) -> list[str]:
    return [s for s in a["raw"]["stages"] if s in b["raw"]["stages"]]


def _holes(a: Row, b: Row, rng: np.random.Generator, at_least: float) -> Change:
    x, y = (
        [c for c in body["raw"]["calls"] if c["measured"] and c["minutes"] > 0] for body in (a, b)
    )
    return _change("glitches_per_min", x, y, glitches_per_minute, rng, at_least)


def _cpu(a: Row, b: Row, rng: np.random.Generator, at_least: float) -> Change:
    x, y = (blocks(body["raw"]["windows"]) for body in (a, b))
    return _change("cpu_s_per_call_min", x, y, cpu_per_minute, rng, at_least)


def blocks(windows: Sequence[Row]) -> list[Row]:
    """Seconds put together by fives: neighbouring seconds are too alike to be drawn apart."""
    known = [w for w in windows if w["cpu_s"] is not None and w["minutes"] > 0]
    fives = [known[i : i + BLOCK] for i in range(0, len(known), BLOCK)]
    return [{key: sum(w[key] for w in five) for key in ("cpu_s", "minutes")} for five in fives]


def _change(
    name: str, x: Sequence[Any], y: Sequence[Any], statistic: Any, rng: np.random.Generator,
    at_least: float, fewest: float = 2,
) -> Change:  # fmt: skip
    before, after = statistic(x), statistic(y)
    interval = difference(x, y, statistic, rng) if min(len(x), len(y)) >= fewest else None
    moved = 0
    if interval is not None and before is not None and after is not None:
        sure = interval[0] > 0 or interval[1] < 0
        if sure and abs(after - before) >= at_least * max(abs(before), 1e-9):
            moved = 1 if after > before else -1
    return Change(name, before, after, interval, moved)


def _count(a: Row, b: Row, name: str) -> Change:
    x, y = a.get(name), b.get(name)
    moved = 0 if x is None or y is None or x == y else (1 if y > x else -1)
    return Change(name.replace("_", " "), x, y, None, moved)


def table(comparison: Comparison) -> list[str]:
    lines = [f"not alike: {text}" for text in comparison.differ]
    lines.append(f"{'':26}{'A':>10}{'B':>10}{'change':>10}   95 % of the difference")
    for c in comparison.changes:
        if c.a is None and c.b is None:
            continue
        share = f"{(c.b - c.a) / c.a:+.0%}" if c.a and c.b is not None else ""
        noise = f"{c.interval[0]:+.1f} to {c.interval[1]:+.1f}" if c.interval else ""
        word = {1: "  WORSE", -1: "  better", 0: ""}[c.moved]
        lines.append(f"{c.name:26}{_shown(c.a):>10}{_shown(c.b):>10}{share:>10}   {noise}{word}")
    if not any(c.moved for c in comparison.changes):
        lines.append("nothing moved beyond noise")
    return lines


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
