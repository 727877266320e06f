"""The threads that speak for every call: the most urgent clause first, piece by piece.

A cancel and a more urgent clause wait for the piece under way and no longer. Queue `voice.clauses`:
bounded by the callers (a call has at most its own few clauses here, and each at most `max_pending`
pieces it has not taken); nothing is dropped but what is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from voice_agent.clock import Clock
from voice_agent.errors import CapacityError, InternalError, UsageError, VoiceAgentError
from voice_agent.scope import CancelScope
from voice_agent.service_time import ServiceTimes
from voice_agent.types import OUT_RATE
from voice_agent.urgency import Due, cannot_wait, order, rebased

from .base import AudioPiece, Clause, Voice
from .speech import Speech

log = logging.getLogger(__name__)

MIN_SPEED, MAX_SPEED = 0.5, 2.0
TARGET_S = 0.6
FILL, SPARE_S = 0.85, 0.5
"""Share of the workers' time that replies which are being heard may come to take, while one of them
has less sound left than this."""
PACE_MEMORY = 64.0
"""Pieces over which what a second of sound takes is learnt."""
USUAL_WORDS = 6
"""Of a first clause."""


@dataclass(frozen=True, slots=True)
class VoiceStats:
    """queued: clauses waiting or under way; unbegun: those of them without a sound yet. busy_s of
    all workers, wall_s: since start. audio_s made, wasted_s of it not taken because of a cancel.
    first_piece_s: predicted service of a usual clause's first sound, piece_s of a further piece.
    wait_s: predicted for a clause that is asked for now. late_pieces: made after their deadline,
    worst_late_s at most; missed: clauses that were late before they began."""

    queued: int
    unbegun: int
    busy_s: float
    wall_s: float
    clauses: int
    pieces: int
    audio_s: float
    wasted_s: float
    cancelled: int
    failed: int
    first_piece_s: float
    piece_s: float
    wait_s: float
    late_pieces: int
    worst_late_s: float
    missed: int
    workers: int

    @property
    def utilisation(self) -> float:
        return self.busy_s / self.wall_s / self.workers if self.wall_s > 0 else 0.0


class VoiceService:
    """Owns the voice and its threads. `speak` and `close` belong to the event loop.

    max_pending: pieces of one clause that may wait for their consumer. max_queued: clauses of all
    calls together, beyond which `speak` raises CapacityError. workers: threads; 0: none, somebody
    else calls `take` and `advance` (a simulation). target_s: what a late first clause is given.
    """

    def __init__(
        self,
        voice: Voice,
        clock: Clock,
        *,
        max_pending: int = 4,
        max_queued: int = 512,
        workers: int = 1,
        target_s: float = TARGET_S,
    ) -> None:
        self.voice = voice
        self.workers = max(1, workers)
        self._target_s = target_s
        self._clock = clock
        self._max_pending = max_pending
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._jobs: list[Speech] = []
        self._dropped: list[Speech] = []
        self._closed = False
        self._order = 0
        self._started_s = clock.now()
        self._busy_s = self._audio_s = self._wasted_s = self._worst_late_s = 0.0
        self._clauses = self._pieces = self._cancelled = self._failed = self._late = 0
        self._missed = 0
        self._first, self._further = ServiceTimes(), ServiceTimes()  # by voice
        self._pace = (0.0, 0.0)  # work, and sound made by it; the past fades
        self._threads = [
            threading.Thread(target=self._work, name=f"voice-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
        voice: Voice | None = None,
    ) -> Speech:
        """Queue a clause at once and return its pieces.

        deadline_s: when the caller's ear needs this clause's next sound; read on the worker thread
        at each choice, so it must only read. voice: another voice for this clause. Raises
        UsageError for a speed outside 0.5 to 2, CapacityError when full, InternalError when closed.
        """
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise UsageError(f"speed {speed} is not between {MIN_SPEED} and {MAX_SPEED}")
        with self._changed:
            if self._closed:
                raise InternalError("the voice service is closed")
            if len(self._jobs) >= self._max_queued:
                raise CapacityError(f"{len(self._jobs)} clauses are waiting for the voice")
            self._order += 1
            job = Speech(self, voice or self.voice, clause, speed, deadline_s, scope, self._order)
            if not scope.cancelled:
                self._jobs.append(job)
                self._changed.notify()
        scope.on_cancel(job.cancel)
        return job

    @property
    def alive(self) -> bool:
        """Whether the threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def stats(self) -> VoiceStats:
        with self._changed:
            return VoiceStats(
                queued=len(self._jobs),
                unbegun=sum(not job.pieces_made for job in self._jobs),
                busy_s=self._busy_s,
                wall_s=self._clock.now() - self._started_s,
                clauses=self._clauses,
                pieces=self._pieces,
                audio_s=self._audio_s,
                wasted_s=self._wasted_s,
                cancelled=self._cancelled,
                failed=self._failed,
                first_piece_s=self._first[self.voice.name].seconds(USUAL_WORDS),
                piece_s=self._further[self.voice.name].seconds(),
                wait_s=sum(self._piece_s(job) for job in self._jobs if not job.pieces_made)
                / self.workers,
                late_pieces=self._late,
                worst_late_s=self._worst_late_s,
                missed=self._missed,
                workers=self.workers,
            )

    async def close(self) -> None:
        """Stop the threads after the pieces under way; every open Speech ends. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    # --- called by Speech on the loop

    def _withdraw(self, job: Speech, *, whole: bool) -> None:
        with self._changed:
            self._cancelled += not whole
            if job.pieces_made:  # pieces of a clause are of like length
                self._wasted_s += job.made_s * job.pending / job.pieces_made
            job.pending, job.pending_s = 0, 0.0
            if job in self._jobs:
                self._jobs.remove(job)
                self._dropped.append(job)
            self._changed.notify()

    def _taken(self, job: Speech, sound_s: float) -> None:
        with self._changed:
            job.pending -= 1
            job.pending_s = max(0.0, job.pending_s - sound_s)
            if job.pending == self._max_pending - 1:
                self._changed.notify()

    # --- worker thread

    def _work(self) -> None:
        while (job := self.take()) is not None:
            self.advance(job, self._clock.now())

    def take(self, *, wait: bool = True) -> Speech | None:
        """The clause whose next piece is the most urgent, to be advanced by whoever took it.

        Waits for one, or returns None at once without `wait`; None once closed.
        """
        with self._changed:
            while True:
                self._let_go()
                if self._closed:
                    left, self._jobs = self._jobs, []
                    break
                job = self._choose()
                if job is not None:
                    job.busy = True
                    return job
                if not wait:
                    return None
                self._changed.wait()
        for rest in left:
            if not rest.busy:
                rest.close_iterator()
            rest.post(None, over=True, error=None)
        return None

    def _let_go(self) -> None:
        """Whoever is inside a dropped clause lets go of it."""
        for gone in self._dropped:
            if not gone.busy:
                gone.close_iterator()
        self._dropped.clear()

    def _choose(self) -> Speech | None:
        """By urgency, of those whose consumer has room; asked anew at every piece.

        Of the replies that are being heard each gets its next piece before it would have to wait
        for one more of anybody else's: the longest there is counts. No reply is begun that the
        workers could not keep up with.
        """
        now = self._clock.now()
        open_jobs = [j for j in self._jobs if not j.busy and j.pending < self._max_pending]
        dues = {job.order: self._due(job, now) for job in open_jobs}
        longest_s = max((due.service_s for due in dues.values() if not due.sounding), default=0.0)
        late = cannot_wait(dues.values(), now, longest_s, self.workers)
        if late or self._no_start(dues.values(), now):
            open_jobs = [job for job in open_jobs if dues[job.order].sounding]
        return min(open_jobs, key=lambda j: (order(dues[j.order]), j.order), default=None)

    def _no_start(self, dues: Iterable[Due], now: float) -> bool:
        """Whether one reply more would take the sound of those that are being heard: each of them
        goes on taking work, so that being in time with the next pieces is not enough."""
        left_s = min((due.deadline_s - now for due in dues if due.sounding), default=math.inf)
        if left_s >= SPARE_S:
            return False
        work_s, sound_s = self._pace
        begun = sum(job.sounding or job.pieces_made > 0 for job in self._jobs)
        return (begun + 1) * work_s > FILL * sound_s * self.workers

    def _piece_s(self, job: Speech) -> float:
        """Predicted service of the clause's next piece."""
        if job.pieces_made:
            return self._further[job.voice_name].seconds()
        return self._first[job.voice_name].seconds(job.size)

    def _due(self, job: Speech, now: float) -> Due:
        """What its next piece is judged by; a late first clause gets a later deadline, once."""
        due = Due(job.deadline_s, self._piece_s(job), job.sounding)
        if job.put_off or job.pieces_made:
            return due
        later_s = rebased(due, now, self._target_s)
        if later_s is None:
            return due
        job.later_s = later_s
        self._missed += 1
        return Due(later_s, due.service_s)

    def advance(self, job: Speech, began_s: float) -> None:
        """Make the next piece of a clause that was taken at `began_s`, and deliver it."""
        piece: AudioPiece | None = None
        error: BaseException | None = None
        try:
            piece = job.step()
        except VoiceAgentError as problem:
            error = problem
        except Exception as problem:
            log.exception("voice %s failed", self.voice.name)
            error = InternalError(f"voice {self.voice.name} failed: {problem!r}")
            error.__cause__ = problem
        now = self._clock.now()
        over = error is not None or piece is None or piece.last
        deliver = piece is not None and (len(piece.pcm) > 0 or piece.last)
        with self._changed:
            self._account(job, piece, now - began_s, now)
            if error is not None:
                self._failed += 1
            if deliver and piece is not None:
                job.pending += 1
                job.pending_s += len(piece.pcm) / OUT_RATE
            if over and job in self._jobs:
                self._jobs.remove(job)
            ends = over or job.is_cancelled() or self._closed
            if ends:
                job.close_iterator()
            job.busy = False
            if self.workers > 1:
                self._changed.notify()
        if deliver or over:
            job.post(piece if deliver else None, over=over, error=error)

    def _learn_pace(self, took_s: float, sound_s: float) -> None:
        keep = 1.0 - 1.0 / PACE_MEMORY
        work_s, made_s = self._pace
        self._pace = keep * work_s + took_s, keep * made_s + sound_s

    def _account(self, job: Speech, piece: AudioPiece | None, took_s: float, now: float) -> None:
        self._busy_s += took_s
        job.work_s += took_s
        if piece is None or not len(piece.pcm):
            return
        sound_s = len(piece.pcm) / OUT_RATE
        self._pieces += 1
        self._audio_s += sound_s
        self._learn_pace(took_s, sound_s)
        job.made_s += sound_s
        job.pieces_made += 1
        if job.pieces_made == 1:
            self._first[job.voice_name].note(job.work_s, job.size)
        else:
            self._further[job.voice_name].note(took_s)
        if job.is_cancelled():
            self._wasted_s += sound_s
            return
        late_s = now - job.needed_s - job.pending_s
        if late_s > 0:
            self._late += 1
            self._worst_late_s = max(self._worst_late_s, late_s)
        self._clauses += job.pieces_made == 1
