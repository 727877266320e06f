"""How late the event loop is: what keeps it from a timer keeps it from every call's media."""

from __future__ import annotations

import asyncio
from collections import deque

from .clock import Clock

EVERY_S = 0.05
KEPT = 200
"""Looks, ten seconds of them."""


class LoopLag:
    """`watch` runs as a task; the figures are of the last ten seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late_s: deque[float] = deque([0.0], maxlen=KEPT)

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            due_s = self._clock.now() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._late_s.append(max(0.0, self._clock.now() - due_s))

    @property
    def p99_s(self) -> float:
        late_s = sorted(self._late_s)
        return late_s[int(0.99 * (len(late_s) - 1))]

    @property
    def mean_s(self) -> float:
        return sum(self._late_s) / len(self._late_s)
