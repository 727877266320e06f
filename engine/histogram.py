"""Counts in fixed buckets: what a scrape reads, and quantiles without keeping every value."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

SECONDS = (
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2,
    0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """counts: values at most bounds[i] and more than bounds[i - 1]; the last count has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def n(self) -> int:
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Linear within its bucket; the last bound for what lies beyond it; 0 without values."""
        left = q * self.n
        low = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and left <= count:
                return low + (bound - low) * left / count
            left -= count
            low = bound
        return low if self.n else 0.0


class Histogram:
    """Written by one thread; a reader on another may be one value behind."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._total)
