"""The one engine thread: it calls `EngineLoop.step` while there is work and sleeps otherwise."""

from __future__ import annotations

import logging
import threading

from engine.clock import Clock
from engine.loop import EngineLoop

log = logging.getLogger(__name__)

_BLOCKED_S = 0.005
"""Pause after a step that could plan nothing, so that a stuck queue does not burn a core."""


class EngineThread:
    """Started once, stopped once; what is still open when it stops is aborted."""

    def __init__(self, loop: EngineLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stop.set()
        self._loop.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        loop, stop = self._loop, self._stop
        while True:
            loop.wait(stop.is_set)
            if stop.is_set():
                break
            try:
                ran = loop.step(self._clock.now())
            except Exception as error:  # our bug: end what is open, serve what comes next
                log.exception("engine step failed")
                loop.fail_all(error, self._clock.now())
                continue
            if not ran and loop.has_work:
                stop.wait(_BLOCKED_S)
        loop.abort_all(self._clock.now())
