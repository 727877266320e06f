"""The one 20 ms clock of the process: absolute times, so errors never add up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from voice_agent.clock import Clock
from voice_agent.types import FRAME_MS

log = logging.getLogger(__name__)

PERIOD_S = FRAME_MS / 1000.0
MAX_CATCH_UP = 10  # ticks (200 ms) made good after a stall; what is beyond is skipped and counted


class Pacer:
    """Calls every subscriber once per 20 ms of the clock, in the order they joined.

    A subscriber that raises is removed and told through its `on_fault`; the others go on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._subscribers: dict[int, tuple[Callable[[], None], Callable[[Exception], None]]] = {}
        self._next_key = 0
        self._due_s: float | None = None
        self.skipped = 0
        self.late_ms = 0.0  # of the last tick

    def join(
        self, on_tick: Callable[[], None], on_fault: Callable[[Exception], None]
    ) -> Callable[[], None]:
        """Returns the leave function, which may be called twice."""
        key, self._next_key = self._next_key, self._next_key + 1
        self._subscribers[key] = (on_tick, on_fault)

        def leave() -> None:
            self._subscribers.pop(key, None)

        return leave

    def __len__(self) -> int:
        return len(self._subscribers)

    def step(self) -> float:
        """Run every tick that is due; returns the seconds until the next one."""
        now = self._clock.now()
        if self._due_s is None:
            self._due_s = now
        behind = int((now - self._due_s) / PERIOD_S)
        if behind > MAX_CATCH_UP:
            self.skipped += behind - MAX_CATCH_UP
            self._due_s += (behind - MAX_CATCH_UP) * PERIOD_S
        self.late_ms = max(0.0, (now - self._due_s) * 1000.0)
        while self._due_s <= now:
            self._due_s += PERIOD_S
            self._tick()
        return max(0.0, self._due_s - self._clock.now())

    def _tick(self) -> None:
        for key, (on_tick, on_fault) in list(self._subscribers.items()):
            if key not in self._subscribers:
                continue  # left during this very tick
            try:
                on_tick()
            except Exception as fault:
                self._subscribers.pop(key, None)
                log.exception("a call's media tick failed")
                on_fault(fault)

    async def run(self) -> None:
        while True:  # noqa: ASYNC110 - a clock, not a poll
            await asyncio.sleep(self.step())
