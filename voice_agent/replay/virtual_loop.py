"""An event loop whose time jumps to the next timer: minutes pass in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            # Nothing is scheduled: only another thread can wake us.
            return super().select(0.05)
        self._loop.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual. It is also a Clock (`now()`)."""

    def __init__(self) -> None:
        self._virtual_s = 1000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._virtual_s

    now = time

    def advance(self, seconds: float) -> None:
        self._virtual_s += max(0.0, seconds)


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run to the end in virtual time; pending tasks are cancelled, generators closed."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
