"""The recogniser's queue: finals first, then by deadline and slack; bounded; stale work dropped."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from voice_agent.errors import CapacityError
from voice_agent.urgency import Due, order, rebased

T = TypeVar("T")
TARGET_S = 0.6


class SupersededError(Exception):
    """A queued partial was replaced by a newer request of the same utterance, or made room for
    one."""


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One request, equal to itself only: payloads hold arrays.

    `drop` is called, outside the lock, if it leaves the queue unserved. service_s: predicted
    seconds of recognition.
    """

    payload: T
    final: bool
    deadline_s: float
    key: Hashable | None
    drop: Callable[[BaseException], None]
    service_s: float = 0.0
    cancelled: bool = field(default=False, init=False)
    rebased: bool = field(default=False, init=False)
    number: int = field(default=0, init=False)

    @property
    def due(self) -> Due:
        return Due(self.deadline_s, self.service_s)


class JobQueue(Generic[T]):
    """Thread-safe. At most `size` live jobs: a final pushes out the partial that could wait
    longest, a partial that finds it full is refused (CapacityError).

    now, target_s: a final that is late already is once given `target_s` from then on, and counted.
    """

    def __init__(
        self, size: int, now: Callable[[], float] = time.monotonic, target_s: float = TARGET_S
    ) -> None:
        self.size = size
        self.refused = 0
        self.missed = 0
        self._now = now
        self._target_s = target_s
        self._jobs: list[Job[T]] = []
        self._count = itertools.count()
        self._ready = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        with self._ready:
            return len(self._live())

    @property
    def work_s(self) -> float:
        """Predicted seconds of all that waits."""
        with self._ready:
            return sum(job.service_s for job in self._live())

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
                victims.append(max(partials, key=lambda j: j.due.begin_by_s))
            for victim in victims:
                victim.cancelled = True
            job.number = next(self._count)
            self._jobs = [*self._live(), job]
            self._ready.notify()
        for victim in victims:
            victim.drop(SupersededError())

    def take(self) -> Job[T] | None:
        """The most urgent job; waits for one. None once closed."""
        with self._ready:
            while True:
                if (job := self._pick()) is not None:
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
                if job.key == key:
                    job.final = True

    def demote(self, key: Hashable) -> None:
        """A queued final of `key` turned out to be none: its caller went on."""
        with self._ready:
            for job in self._live():
                if job.key == key:
                    job.final = False

    def close(self) -> None:
        """Refuse new jobs and drop the queued ones."""
        with self._ready:
            self._closed = True
            dropped, self._jobs = self._live(), []
            self._ready.notify_all()
        for job in dropped:
            job.drop(CapacityError("recognition is shutting down"))

    def _pick(self) -> Job[T] | None:
        self._jobs = self._live()
        if not self._jobs:
            return None
        now = self._now()
        for job in self._jobs:
            if job.final and not job.rebased:  # a newer partial replaces one that is late
                self._rebase(job, now)
        best = min(self._jobs, key=lambda j: (not j.final, order(j.due), j.number))
        self._jobs.remove(best)
        return best

    def _rebase(self, job: Job[T], now: float) -> None:
        deadline_s = rebased(job.due, now, self._target_s)
        if deadline_s is not None:
            job.deadline_s, job.rebased = deadline_s, True
            self.missed += 1

    def _live(self) -> list[Job[T]]:
        return [job for job in self._jobs if not job.cancelled]

    def _stale(self, job: Job[T]) -> list[Job[T]]:
        if job.key is None:
            return []
        return [j for j in self._live() if j.key == job.key and not j.final]
