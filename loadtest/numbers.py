"""Percentiles from raw samples, and the noise of a difference. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
RESAMPLES = 2000


def percentile(values: Sequence[float] | Floats, q: float) -> float | None:
    """Nearest rank (the smallest value that a share q of all do not exceed); None without any."""
    ordered = np.sort(np.asarray(values, np.float64))
    if not len(ordered):
        return None
    rank = int(np.ceil(q * len(ordered) - 1e-9)) - 1
    return float(ordered[max(0, rank)])


def spread(values: Sequence[float], lower_bounds: int = 0) -> dict[str, Any]:
    """p50, p95, p99, max and n. rough: the percentiles that too few values support (n < 10 /
    (1 - q)). lower_bounds: so many of the values are waits that were given up."""
    out: dict[str, Any] = {name: percentile(values, q) for name, q in PERCENTILES}
    out |= {"max": max(values, default=None), "n": len(values), "unanswered": lower_bounds}
    out["rough"] = [name for name, q in PERCENTILES if len(values) < 10 / (1 - q) - 1e-9]
    return out


Statistic = Callable[[list[Any]], float | None]


def difference(
    a: Sequence[Any], b: Sequence[Any], statistic: Statistic, rng: np.random.Generator
) -> tuple[float, float] | None:
    """95 % interval of statistic(b) - statistic(a) by the bootstrap over the units of a and b
    (turns, calls, windows of time); None where either has fewer than two."""
    if len(a) < 2 or len(b) < 2:
        return None
    drawn = []
    for _ in range(RESAMPLES):
        x = statistic([a[i] for i in rng.integers(len(a), size=len(a))])
        y = statistic([b[i] for i in rng.integers(len(b), size=len(b))])
        if x is not None and y is not None:
            drawn.append(y - x)
    if not drawn:
        return None
    low, high = np.quantile(np.asarray(drawn), [0.025, 0.975])
    return float(low), float(high)
