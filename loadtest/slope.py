"""Whether a number grows: the slope of a line through it, with a confidence interval. Pure.

Samples of a process's memory depend on each other, so that a plain fit believes itself too much:
the line goes through medians of equal stretches, whose scatter is what the interval is made of.

A step is no slope: a library's buffer grows with the first long sentence, and once. Up to `STEPS`
rises from one stretch to the next that stand out from all others are fitted beside the line, which
makes its interval wider; what goes on growing rises again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STRETCHES = 12
CONFIDENCE = 0.99
STEPS = 1
STANDS_OUT = 5.0
"""Times the median change."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Per hour, and the interval that holds the true one with `CONFIDENCE`. hours: that it was
    looked at. least: a rise in all that matters. steps: how high."""

    per_hour: float
    low: float
    high: float
    hours: float
    least: float = 0.5
    steps: tuple[float, ...] = ()

    @property
    def grows(self) -> bool:
        """Beyond what the scatter explains, and by more than `least` in all."""
        return self.low * self.hours > self.least

    def __str__(self) -> str:
        return f"{self.per_hour:+.2f} an hour ({self.low:+.2f} to {self.high:+.2f})"


def slope(
    times_s: Sequence[float],
    values: Sequence[float],
    *,
    warm_up_s: float,
    stretches: int = STRETCHES,
    beside: Sequence[float] | None = None,
    least: float = 0.5,
) -> Slope:
    """times_s: ascending. What comes before `warm_up_s` after the first one is left out. beside:
    for each, another number that explains part of it (calls that are live): fitted too. least: as
    in `Slope`; half of a counted thing.

    Raises ValueError where the rest does not fill the stretches.
    """
    begin_s = times_s[0] + warm_up_s if times_s else 0.0
    other = beside if beside is not None else [0.0] * len(times_s)
    rest = [row for row in zip(times_s, values, other, strict=True) if row[0] >= begin_s]
    if stretches < 2 * STEPS + 6 or len(rest) < stretches:
        raise ValueError(
            f"{len(rest)} samples after the warm-up, and {stretches} stretches to fill"
        )
    whole_s = rest[-1][0] - begin_s
    if whole_s <= 0:
        raise ValueError("all samples are of one moment")
    groups: list[list[tuple[float, float, float]]] = [[] for _ in range(stretches)]
    for row in rest:
        groups[min(stretches - 1, int((row[0] - begin_s) / whole_s * stretches))].append(row)
    if not all(groups):
        raise ValueError("there are stretches without a sample")
    times = np.asarray([fmean(t for t, _, _ in g) for g in groups])
    levels = np.asarray([median(v for _, v, _ in g) for g in groups])
    others = np.asarray([fmean(o for _, _, o in g) for g in groups])
    return replace(_fit(times / 3600.0, levels, others), least=least)


def _steps(levels: Floats) -> list[int]:
    """The stretches that begin with one."""
    rises = np.diff(levels)
    limit = STANDS_OUT * np.median(np.abs(rises))
    return sorted(int(i) + 1 for i in np.argsort(-rises)[:STEPS] if rises[i] > limit)


def _fit(x: Floats, y: Floats, beside: Floats) -> Slope:
    """Least squares of a line, of what `beside` explains, and of the height of every step."""
    columns = [np.ones(len(x)), x - x.mean()]
    if np.ptp(beside) > 0:
        columns.append(beside - beside.mean())
        y = y - columns[2] * np.linalg.lstsq(np.column_stack(columns), y, rcond=None)[0][2]
    n_plain = len(columns)
    columns += [(np.arange(len(x)) >= at).astype(np.float64) for at in _steps(y)]
    design = np.column_stack(columns)
    inverse = np.linalg.inv(design.T @ design)
    found = inverse @ design.T @ y
    freedom = len(x) - len(columns)
    variance = float(((y - design @ found) ** 2).sum()) / freedom * float(inverse[1, 1])
    reach = student_t(0.5 + CONFIDENCE / 2, freedom) * variance**0.5
    per, high = float(found[1]), tuple(map(float, found[n_plain:]))
    return Slope(per, per - reach, per + reach, float(x[-1] - x[0]), steps=high)


def student_t(p: float, freedom: int) -> float:
    """The quantile of Student's distribution, by Cornish and Fisher's expansion; within 2 % from
    four degrees of freedom on."""
    z, v = NormalDist().inv_cdf(p), float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
