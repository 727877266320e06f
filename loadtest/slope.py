"""Whether a number grows: the slope of a line through it, with a confidence interval. Pure.

Samples of a process's memory depend on each other, so that a plain fit believes itself too much:
the line goes through means of equal stretches, whose scatter is what the interval is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

STRETCHES = 12
CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Slope:
    """Per hour, and the interval that holds the true one with `CONFIDENCE`."""

    per_hour: float
    low: float
    high: float

    @property
    def grows(self) -> bool:
        """Beyond what the scatter explains."""
        return self.low > 0.0

    def __str__(self) -> str:
        return f"{self.per_hour:+.2f} an hour ({self.low:+.2f} to {self.high:+.2f})"


def slope(
    times_s: Sequence[float],
    values: Sequence[float],
    *,
    warm_up_s: float,
    stretches: int = STRETCHES,
) -> Slope:
    """times_s: ascending. What comes before `warm_up_s` after the first one is left out.

    Raises ValueError where the rest does not fill the stretches.
    """
    begin_s = times_s[0] + warm_up_s if times_s else 0.0
    rest = [(t, v) for t, v in zip(times_s, values, strict=True) if t >= begin_s]
    if stretches < 4 or len(rest) < stretches:
        raise ValueError(
            f"{len(rest)} samples after the warm-up, and {stretches} stretches to fill"
        )
    whole_s = rest[-1][0] - begin_s
    if whole_s <= 0:
        raise ValueError("all samples are of one moment")
    groups: list[list[tuple[float, float]]] = [[] for _ in range(stretches)]
    for t, v in rest:
        groups[min(stretches - 1, int((t - begin_s) / whole_s * stretches))].append((t, v))
    if not all(groups):
        raise ValueError("there are stretches without a sample")
    means = [(fmean(t for t, _ in g), fmean(v for _, v in g)) for g in groups]
    return _fit([t / 3600.0 for t, _ in means], [v for _, v in means])


def _fit(x: Sequence[float], y: Sequence[float]) -> Slope:
    n, mean_x, mean_y = len(x), fmean(x), fmean(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    per = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    residual = sum((b - mean_y - per * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    error = (residual / (n - 2) / spread) ** 0.5
    reach = student_t(0.5 + CONFIDENCE / 2, n - 2) * error
    return Slope(per, per - reach, per + reach)


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
