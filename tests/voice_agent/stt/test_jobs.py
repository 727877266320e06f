"""The recogniser's queue: order, bound, stale work."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from voice_agent.errors import CapacityError
from voice_agent.stt.jobs import Job, JobQueue, SupersededError

pytestmark = pytest.mark.unit


class Dropped(list[tuple[str, BaseException]]):
    def job(
        self, name: str, *, final: bool = False, at: float = 0.0, key: str | None = None
    ) -> Job[str]:
        return Job(name, final, at, key, lambda error: self.append((name, error)))


def still() -> float:
    """A clock at which no deadline of these tests is missed."""
    return -100.0


def drain(queue: JobQueue[str]) -> list[str]:
    out = []
    while len(queue):
        job = queue.take()
        assert job is not None
        out.append(job.payload)
    return out


def test_finals_first_then_the_earliest_deadline_then_arrival() -> None:
    queue: JobQueue[str] = JobQueue(8, still)
    dropped = Dropped()
    for job in (
        dropped.job("late", at=5),
        dropped.job("soon", at=1),
        dropped.job("soon too", at=1),
        dropped.job("final late", final=True, at=9),
        dropped.job("final soon", final=True, at=2),
    ):
        queue.put(job)
    assert drain(queue) == ["final soon", "final late", "soon", "soon too", "late"]
    assert dropped == []


def test_a_newer_request_replaces_a_queued_partial_of_its_utterance() -> None:
    queue: JobQueue[str] = JobQueue(8, still)
    dropped = Dropped()
    queue.put(dropped.job("old", key="u"))
    queue.put(dropped.job("other", key="v"))
    queue.put(dropped.job("final", key="u", final=True))
    queue.put(dropped.job("after", key="u"))
    assert [name for name, _ in dropped] == ["old"]
    assert isinstance(dropped[0][1], SupersededError)
    assert drain(queue) == ["final", "other", "after"]


def test_jobs_that_hold_arrays_are_told_apart_by_identity() -> None:
    queue: JobQueue[np.ndarray] = JobQueue(8, still)
    old, other, new = (
        Job(np.zeros(n, np.float32), False, 0.0, key, lambda error: None)
        for n, key in ((3, "u"), (5, "v"), (4, "u"))
    )
    for job in (old, other, new):
        queue.put(job)
    assert (old.cancelled, other.cancelled, new.cancelled) == (True, False, False)


def test_full_refuses_partials_and_makes_room_for_finals() -> None:
    queue: JobQueue[str] = JobQueue(2, still)
    dropped = Dropped()
    queue.put(dropped.job("soon", at=1))
    queue.put(dropped.job("late", at=2))
    with pytest.raises(CapacityError):
        queue.put(dropped.job("third"))
    queue.put(dropped.job("final", final=True))
    assert [name for name, _ in dropped] == ["late"]
    queue.put(dropped.job("final 2", final=True))
    with pytest.raises(CapacityError):
        queue.put(dropped.job("final 3", final=True))
    assert drain(queue) == ["final", "final 2"]
    assert queue.refused == 2


def test_cancelled_jobs_are_skipped_and_leave_room() -> None:
    queue: JobQueue[str] = JobQueue(2, still)
    dropped = Dropped()
    for i in range(1_000):
        job = dropped.job(str(i))
        queue.put(job)
        queue.cancel(job)
    assert len(queue) == 0
    assert len(queue._jobs) <= queue.size
    queue.put(dropped.job("kept"))
    assert drain(queue) == ["kept"]
    assert dropped == []


def test_a_pass_that_takes_longer_must_begin_earlier() -> None:
    queue: JobQueue[str] = JobQueue(8, still)
    dropped = Dropped()
    short, long = dropped.job("short", final=True, at=1.0), dropped.job("long", final=True, at=1.2)
    short.service_s, long.service_s = 0.1, 0.5
    queue.put(short)
    queue.put(long)
    assert queue.work_s == pytest.approx(0.6)
    assert drain(queue) == ["long", "short"]


def test_finals_that_are_late_already_do_not_make_the_others_late() -> None:
    """Ten come too late and one in time: the one is served first, and each is put off once."""
    now_s = 10.0
    queue: JobQueue[str] = JobQueue(16, lambda: now_s, target_s=0.6)
    dropped = Dropped()
    for n in range(10):
        queue.put(dropped.job(f"late {n}", final=True, at=9.0 + n / 100))
    queue.put(dropped.job("in time", final=True, at=10.5))
    assert drain(queue) == ["in time", *(f"late {n}" for n in range(10))]
    assert queue.missed == 10


def test_who_was_put_off_once_is_served_before_who_comes_later() -> None:
    """No final starves: what is put off becomes the most urgent in time."""
    now_s = 10.0
    queue: JobQueue[str] = JobQueue(64, lambda: now_s, target_s=0.6)
    dropped = Dropped()
    queue.put(dropped.job("old", final=True, at=9.0))
    order: list[str] = []
    for n in range(30):
        queue.put(dropped.job(f"new {n}", final=True, at=now_s + 0.5))
        job = queue.take()
        assert job is not None
        order.append(job.payload)
        now_s += 0.1
    assert order.index("old") <= 4


def test_a_promoted_partial_is_ordered_like_a_final() -> None:
    queue: JobQueue[str] = JobQueue(4, still)
    dropped = Dropped()
    queue.put(dropped.job("first", at=0))
    queue.put(dropped.job("pause", at=9, key="u"))
    queue.promote("u")
    queue.promote("nobody")
    assert drain(queue) == ["pause", "first"]


def test_close_drops_the_queue_and_wakes_the_worker() -> None:
    queue: JobQueue[str] = JobQueue(4, still)
    dropped = Dropped()
    seen: list[Job[str] | None] = []
    worker = threading.Thread(target=lambda: seen.append(queue.take()))
    worker.start()
    queue.close()
    worker.join(5)
    assert seen == [None]
    with pytest.raises(CapacityError):
        queue.put(dropped.job("x"))
    full: JobQueue[str] = JobQueue(4, still)
    full.put(dropped.job("waiting"))
    full.close()
    assert isinstance(dropped[0][1], CapacityError)
    assert full.take() is None


def test_a_final_whose_caller_went_on_waits_like_a_partial_and_is_replaced() -> None:
    queue: JobQueue[str] = JobQueue(4, still)
    dropped = Dropped()
    queue.put(dropped.job("pause", final=True, at=0, key="u"))
    queue.put(dropped.job("other", final=True, at=9))
    queue.demote("u")
    queue.demote("nobody")
    queue.put(dropped.job("partial", at=5, key="u"))
    assert drain(queue) == ["other", "partial"]
    assert [name for name, _ in dropped] == ["pause"]
