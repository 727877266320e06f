"""The one engine thread: it calls `EngineLoop.step` while there is work and sleeps otherwise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from engine.clock import Clock
from engine.loop import EngineLoop

log = logging.getLogger(__name__)

T = TypeVar("T")

_BLOCKED_S = 0.005
"""Pause after a step that could plan nothing, so that a stuck queue does not burn a core."""


class EngineThread:
    """Runs jobs until `start`, then the loop until `stop`, which aborts what is still open.

    Warm-up is such a job: native thread pools belong to the thread that calls them, so the pool
    that was warmed must be the one that serves.
    """

    def __init__(self, loop: EngineLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._stop = threading.Event()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.rounds = 0
        """Steps that came back, whatever they did: a thread that hangs counts no further."""

    def call(self, job: Callable[[], T]) -> T:
        """Run a job on the thread and wait for it. Only before `start`."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except BaseException as error:  # the caller's to handle
                done.set_exception(error)

        self._jobs.put(run)
        self._ensure_alive()
        return done.result()

    def start(self) -> None:
        self._jobs.put(None)
        self._ensure_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def busy(self) -> bool:
        return self._loop.has_work

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stop.set()
        self._jobs.put(None)
        self._loop.wake()
        self._ensure_alive()  # never started: it only ends what was submitted
        self._thread.join()

    def _ensure_alive(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
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
            finally:
                self.rounds += 1
            if not ran and loop.has_work:
                stop.wait(_BLOCKED_S)
        loop.abort_all(self._clock.now())
