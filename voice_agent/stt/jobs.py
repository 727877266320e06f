"""The recogniser's queue: finals first, then the earliest deadline; bounded; stale work dropped."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from voice_agent.errors import CapacityError

T = TypeVar("T")


class SupersededError(Exception):
    """A queued partial was replaced by a newer request of the same utterance, or made room for
    one."""


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One request, equal to itself only: payloads hold arrays.

    `drop` is called, outside the lock, if it leaves the queue unserved.
    """

    payload: T
    final: bool
    deadline_s: float
    key: Hashable | None
    drop: Callable[[BaseException], None]
    cancelled: bool = field(default=False, init=False)


class JobQueue(Generic[T]):
    """Thread-safe. At most `size` live jobs: a final pushes out the partial that could wait
    longest, a partial that finds it full is refused (CapacityError).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.superseded = 0
        self.refused = 0
        self._heap: list[tuple[bool, float, int, Job[T]]] = []
        self._count = itertools.count()
        self._ready = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        with self._ready:
            return len(self._live())

    def put(self, job: Job[T]) -> None:
        """Queue a job. Raises CapacityError when full or closed."""
        with self._ready:
            if self._closed:
                raise CapacityError("recognition is shutting down")
            victims = self._stale(job)
            live = [j for j in self._live() if j not in victims]
            if len(live) >= self.size:
                partials = [j for j in live if not j.final]
                if not job.final or not partials:
                    self.refused += 1
                    raise CapacityError("the recognition queue is full")
                victims.append(max(partials, key=lambda j: j.deadline_s))
            for victim in victims:
                victim.cancelled = True
                self.superseded += 1
            heapq.heappush(self._heap, (not job.final, job.deadline_s, next(self._count), job))
            if len(self._heap) > 2 * self.size:
                self._heap = [entry for entry in self._heap if not entry[3].cancelled]
                heapq.heapify(self._heap)
            self._ready.notify()
        for victim in victims:
            victim.drop(SupersededError())

    def take(self) -> Job[T] | None:
        """The most urgent job; waits for one. None once closed."""
        with self._ready:
            while True:
                while self._heap:
                    job = heapq.heappop(self._heap)[3]
                    if not job.cancelled:
                        return job
                if self._closed:
                    return None
                self._ready.wait()

    def cancel(self, job: Job[T]) -> None:
        """Forget a job that has not started; no effect otherwise."""
        with self._ready:
            job.cancelled = True

    def promote(self, key: Hashable) -> None:
        """A queued partial of `key` turned out to be its final."""
        with self._ready:
            for job in self._live():
                if job.key == key and not job.final:
                    job.final = True
                    entry = (False, job.deadline_s, next(self._count), job)
                    self._heap = [e for e in self._heap if e[3] is not job]
                    heapq.heapify(self._heap)
                    heapq.heappush(self._heap, entry)

    def close(self) -> None:
        """Refuse new jobs and drop the queued ones."""
        with self._ready:
            self._closed = True
            dropped, self._heap = self._live(), []
            self._ready.notify_all()
        for job in dropped:
            job.drop(CapacityError("recognition is shutting down"))

    def _live(self) -> list[Job[T]]:
        return [entry[3] for entry in self._heap if not entry[3].cancelled]

    def _stale(self, job: Job[T]) -> list[Job[T]]:
        if job.key is None:
            return []
        return [j for j in self._live() if j.key == job.key and not j.final]
