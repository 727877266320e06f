"""How long garbage collections held the process up; they stop every thread that runs Python."""

from __future__ import annotations

import gc
import time


class GcWatch:
    """Counts from `start` to `stop`, both idempotent."""

    def __init__(self) -> None:
        self.n = 0
        self.total_s = 0.0
        self.longest_s = 0.0
        self._began_s = 0.0

    def start(self) -> None:
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)

    def stop(self) -> None:
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
            return
        pause_s = time.perf_counter() - self._began_s
        self.n += 1
        self.total_s += pause_s
        self.longest_s = max(self.longest_s, pause_s)
