"""How long a stage takes for a piece of work, learnt from what it took: seconds over its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

MEMORY = 32.0
"""Pieces of work that an estimate rests on: older ones fade."""
CAP, SURE = 4.0, 8
"""Once so many are known, one that takes so many times as long as predicted counts as no longer:
a machine that stood still for a second says little about the next piece."""


class ServiceTime:
    """A line through (size, seconds) by least squares, the past forgotten exponentially.

    size: whatever the work grows with (seconds of audio, words). Written by the stage's threads
    under the stage's own lock, read from anywhere. Before the first `note` it predicts `first_s`.
    """

    def __init__(self, first_s: float = 0.0) -> None:
        self._line = (first_s, 0.0)
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self.noted = 0

    def seconds(self, size: float = 0.0) -> float:
        """Predicted service of a piece of this size; never negative."""
        base_s, per_s = self._line
        return base_s + per_s * size

    def note(self, took_s: float, size: float = 0.0) -> None:
        """What one piece really took."""
        if self.noted >= SURE:
            took_s = min(took_s, CAP * max(self.seconds(size), 1e-4))
        keep = 1.0 - 1.0 / MEMORY
        self._n = keep * self._n + 1.0
        self._x = keep * self._x + size
        self._y = keep * self._y + took_s
        self._xx = keep * self._xx + size * size
        self._xy = keep * self._xy + size * took_s
        self.noted += 1
        self._line = self._fitted()

    def _fitted(self) -> tuple[float, float]:
        spread = self._n * self._xx - self._x * self._x
        if spread <= 1e-9 * self._n * self._xx:  # all of one size
            return self._y / self._n, 0.0
        per_s = (self._n * self._xy - self._x * self._y) / spread
        if per_s <= 0.0:
            return self._y / self._n, 0.0
        base_s = (self._y - per_s * self._x) / self._n
        return (base_s, per_s) if base_s >= 0.0 else (0.0, self._xy / self._xx)


class ServiceTimes:
    """One estimate for each kind of work of a stage: a voice, a model."""

    def __init__(self, first_s: float = 0.0) -> None:
        self._first_s = first_s
        self._kinds: dict[str, ServiceTime] = {}

    def __getitem__(self, kind: str) -> ServiceTime:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = ServiceTime(self._first_s)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._kinds))

    def at(self, size: float) -> Mapping[str, float]:
        """Seconds that each kind is predicted to take for this size."""
        return {kind: self._kinds[kind].seconds(size) for kind in self}
