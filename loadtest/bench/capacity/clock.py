"""Virtual time for a whole server: an event loop that can hold deliveries, and shared cores."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from voice_agent.replay.virtual_loop import VirtualLoop

_Held: TypeAlias = list[tuple[Callable[..., object], tuple[Any, ...]]]


class ServerLoop(VirtualLoop):
    """What a step of the engine delivers is held until the step's time has passed; what the loop's
    own Python takes, everybody waits for (`busy`)."""

    def __init__(self) -> None:
        super().__init__()
        self._held: _Held | None = None
        self._main = threading.get_ident()
        self.busy_s = 0.0

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle | None:
        if self._held is not None:
            self._held.append((callback, args))
            return None
        if threading.get_ident() == self._main:  # no need to wake anybody
            return self.call_soon(callback, *args, context=context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    @contextmanager
    def holding(self) -> Iterator[_Held]:
        """Yields the list of what would have been delivered meanwhile: (callback, arguments)."""
        held: _Held = []
        self._held = held
        try:
            yield held
        finally:
            self._held = None

    def busy(self, seconds: float) -> None:
        """The loop's thread worked for so long, and nothing else ran on it."""
        self.busy_s += seconds
        self.advance(seconds)


class Cores:
    """`n` processors, shared equally by whoever works on them: with more than n at work each is
    slower by as much (processor sharing).

    beside: how many times longer than alone work takes while another thread is at work too, each
    on a processor of its own: they share memory, caches and the interpreter.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, n: float, beside: float = 1.0) -> None:
        self._loop = loop
        self._n = n
        self._beside = beside
        self._served = 0.0  # work that each job under way since the start would have got
        self._at = loop.time()
        self._jobs: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def slowness(self) -> float:
        """How many times longer than alone one more job would take now."""
        return 1.0 / self._rate_of(len(self._jobs) + 1)

    async def work(self, seconds: float) -> float:
        """Returns when `seconds` of one processor's time have been had: how long that took. A
        waiter that is cancelled leaves its work behind, as a thread would."""
        self._settle()
        began_s = self._at
        done: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._jobs, (self._served + max(0.0, seconds), next(self._order), done))
        self._arm()
        await done
        return self._loop.time() - began_s

    @property
    def _rate(self) -> float:
        return self._rate_of(len(self._jobs))

    def _rate_of(self, n_jobs: int) -> float:
        if n_jobs < 2:
            return min(1.0, self._n)
        return min(1.0, self._n / n_jobs) / self._beside

    def _settle(self) -> None:
        now = self._loop.time()
        self._served += (now - self._at) * self._rate
        self._at = now

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._jobs:
            wait_s = max(0.0, self._jobs[0][0] - self._served) / self._rate
            self._timer = self._loop.call_at(self._at + wait_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._settle()
        while self._jobs and self._jobs[0][0] <= self._served + 1e-9:
            done = heapq.heappop(self._jobs)[2]
            if not done.done():
                done.set_result(None)
        self._arm()
