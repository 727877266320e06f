"""Time as a parameter: monotonic seconds, real or virtual."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in seconds. Deadlines everywhere are absolute values of this clock."""

    def now(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that only moves when told to; for tests and simulation."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("time runs one way")
        self._now_s += seconds
