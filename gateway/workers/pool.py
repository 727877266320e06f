"""The media workers of a server: started, watched, replaced when they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from voice_agent.errors import CapacityError, InternalError

from .link import Message
from .worker import FarLine, Worker

log = logging.getLogger(__name__)

CHECK_S = 1.0
SILENT_CHECKS = 5  # without a bundle: the worker hangs
READY_S = 60.0
GIVE_UP = 3  # failures in a row when none has ever come up
BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0)  # before the next start, by failures in a row


def _no_calls(line: FarLine, message: Message) -> None:
    """Nobody is there for calls that begin in a worker."""
    line.tell("close")


class Pool:
    """`n` workers of one kind. A worker that ends takes its own lines with it and no other."""

    def __init__(
        self,
        kind: str,
        n: int,
        settings: Message,
        on_incoming: Callable[[FarLine, Message], None] = _no_calls,
        on_notice: Callable[[Message], None] = lambda message: None,
    ) -> None:
        """kind: `webrtc` or another of gateway/workers/__main__.py; settings: for it. on_notice: a
        worker's own messages beyond the common ones."""
        self.kind = kind
        self._settings = {"kind": kind, **settings}
        self._on_incoming = on_incoming
        self._on_notice = on_notice
        self._workers: list[Worker | None] = [None] * n
        self._changed = asyncio.Event()
        self._served = False
        self.restarts = 0

    async def run(self) -> None:
        """Until cancelled. Raises InternalError VA489 if none ever comes up."""
        async with asyncio.TaskGroup() as group:
            for place in range(len(self._workers)):
                group.create_task(self._keep(place))

    async def ready(self) -> None:
        """Returns once every worker takes lines."""
        while len(self.workers) < len(self._workers):
            self._changed.clear()
            await self._changed.wait()

    @property
    def workers(self) -> list[Worker]:
        """Those that take lines."""
        return [w for w in self._workers if w is not None and w.ready.is_set() and not w.link.stuck]

    def line(self, on_message: Callable[[Message], None]) -> FarLine:
        """A line of the worker that has the fewest. Raises CapacityError VA488."""
        workers = self.workers
        if not workers:
            raise CapacityError("No media worker is up. Try again in a moment.", code="VA488")
        return min(workers, key=lambda w: len(w.lines)).line(on_message)

    async def _keep(self, place: int) -> None:
        failures = 0
        while True:
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
            served = await self._one(place)
            failures = 0 if served else failures + 1
            if failures == GIVE_UP and not self._served:
                text = f"the {self.kind} media worker does not start: see the log above"
                raise InternalError(text, code="VA489")
            self._served = self._served or served
            self.restarts += 1

    async def _one(self, place: int) -> bool:
        """A worker's whole life. False if it never took a line."""
        name = f"{self.kind}{place}"
        worker = Worker(name, self._settings, self._on_incoming, self._on_notice)
        fields = {"worker": worker.name}
        status = None
        try:
            await worker.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_S):
                    await _either(worker.ready, worker.gone)
            if worker.ready.is_set():
                self._workers[place] = worker
                self._changed.set()
                await self._watch(worker)
        except OSError as error:
            log.error("a media worker did not start: %s", error, extra=fields)
        finally:
            self._workers[place] = None
            fields["lines"] = str(len(worker.lines))
            status = await asyncio.shield(worker.end())
        log.error("a media worker ended; the next one starts", extra={**fields, "status": status})
        return worker.ready.is_set()

    async def _watch(self, worker: Worker) -> None:
        """Until it is gone, or hangs: whatever it does, it says so twice a second."""
        silent = 0
        while silent < SILENT_CHECKS and not worker.gone.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await worker.gone.wait()
            silent = 0 if worker.seen() else silent + 1

    def gauges(self) -> dict[str, float]:
        workers = self.workers
        return {
            f"{self.kind}_workers": float(len(workers)),
            f"{self.kind}_worker_restarts_total": float(self.restarts),
            f"{self.kind}_worker_late_ms": max((w.late_ms for w in workers), default=0.0),
            f"{self.kind}_worker_lines": float(sum(len(w.lines) for w in workers)),
        }


async def _either(a: asyncio.Event, b: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(e.wait()) for e in (a, b)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
