"""One worker thread that speaks for every call: the most urgent clause first, piece by piece.

Queue `voice.clauses`: bounded by the callers (a call has at most its own few clauses here, and
each at most `max_pending` pieces it has not taken); nothing is dropped but what is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from voice_agent.clock import Clock
from voice_agent.errors import CapacityError, InternalError, UsageError, VoiceAgentError
from voice_agent.scope import CancelScope
from voice_agent.types import OUT_RATE

from .base import AudioPiece, Clause, Voice
from .estimate import timed

log = logging.getLogger(__name__)

MIN_SPEED, MAX_SPEED = 0.5, 2.0
_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class VoiceStats:
    """queued: clauses waiting or under way; unbegun: those of them without a sound yet. busy_s /
    wall_s: use of the thread since start. audio_s made, wasted_s of it not taken because of a
    cancel. first_piece_s: smoothed service time of a clause's first sound. late_pieces: made after
    their deadline, worst_late_s at most."""

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
    late_pieces: int
    worst_late_s: float

    @property
    def utilisation(self) -> float:
        return self.busy_s / self.wall_s if self.wall_s > 0 else 0.0


class Speech:
    """The pieces of one clause, an async iterator on the loop that asked for it.

    Ends after the last piece, or at once when the scope is cancelled. Raises what the voice raised.
    """

    def __init__(
        self,
        service: VoiceService,
        voice: Voice,
        clause: Clause,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
        order: int,
    ) -> None:
        self.clause = clause
        self.order = order
        self.deadline_s = deadline_s
        self.cancelled = False
        self.pending = 0  # made and not taken; guarded by the service's lock
        self.made_s = 0.0
        self.work_s = 0.0
        self.pieces_made = 0
        self._service = service
        self._voice = voice
        self._speed = speed
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._ready: deque[AudioPiece] = deque()
        self._over = False
        self._error: BaseException | None = None
        self._wake: asyncio.Event = asyncio.Event()
        self._iterator: Iterator[AudioPiece] | None = None
        self._made: Iterator[AudioPiece] | None = None  # by the voice itself

    # --- worker thread

    def step(self) -> AudioPiece | None:
        if self._iterator is None:
            self._made = self._iterator = self._voice.synthesize(
                self.clause, speed=self._speed, cancelled=self.is_cancelled
            )
            if not self._voice.exact_times:
                self._iterator = timed(self.clause, self._made, speed=self._speed)
        return next(self._iterator, None)

    def is_cancelled(self) -> bool:
        return self.cancelled or self._scope.cancelled

    def close_iterator(self) -> None:
        """Let the voice drop what it holds; only while the worker is not inside it."""
        iterator, self._iterator, self._made = self._made, None, None
        close = getattr(iterator, "close", None)
        if close is not None:
            close()

    def post(self, piece: AudioPiece | None, *, over: bool, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take_in, piece, over, error)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self.cancelled = True

    # --- event loop

    def _take_in(self, piece: AudioPiece | None, over: bool, error: BaseException | None) -> None:
        if piece is not None and not self.is_cancelled():
            self._ready.append(piece)
        self._over = self._over or over
        self._error = self._error or error
        self._wake.set()

    def cancel(self) -> None:
        """Drop the clause; called by the scope, or by a consumer that has had enough."""
        if self.cancelled:
            return
        self.cancelled = True
        self._service._withdraw(self, whole=self._over)
        self._ready.clear()
        self._over = True
        self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AudioPiece:
        while not self._ready:
            if self._error is not None and not self.is_cancelled():
                error, self._error = self._error, None
                raise error
            if self._over or self.is_cancelled():
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        piece = self._ready.popleft()
        self._service._taken(self)
        return piece

    async def aclose(self) -> None:
        self.cancel()


class VoiceService:
    """Owns the voice and its thread. `speak` and `close` belong to the event loop.

    max_pending: pieces of one clause that may wait for their consumer. max_queued: clauses of all
    calls together, beyond which `speak` raises CapacityError.
    """

    def __init__(
        self, voice: Voice, clock: Clock, *, max_pending: int = 4, max_queued: int = 512
    ) -> None:
        self.voice = voice
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
        self._first_piece_s = self._piece_s = 0.0
        self._clauses = self._pieces = self._cancelled = self._failed = self._late = 0
        self._thread = threading.Thread(target=self._work, name="voice", daemon=True)
        self._thread.start()

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
        """Whether the thread runs."""
        return self._thread.is_alive()

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
                first_piece_s=self._first_piece_s,
                late_pieces=self._late,
                worst_late_s=self._worst_late_s,
            )

    async def close(self) -> None:
        """Stop the thread after the piece under way; every open Speech ends. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    # --- called by Speech on the loop

    def _withdraw(self, job: Speech, *, whole: bool) -> None:
        with self._changed:
            self._cancelled += not whole
            if job.pieces_made:  # pieces of a clause are of like length
                self._wasted_s += job.made_s * job.pending / job.pieces_made
            job.pending = 0
            if job in self._jobs:
                self._jobs.remove(job)
                self._dropped.append(job)
            self._changed.notify()

    def _taken(self, job: Speech) -> None:
        with self._changed:
            job.pending -= 1
            if job.pending == self._max_pending - 1:
                self._changed.notify()

    # --- worker thread

    def _work(self) -> None:
        while True:
            with self._changed:
                while True:
                    for gone in self._dropped:
                        gone.close_iterator()
                    self._dropped.clear()
                    if self._closed:
                        left, self._jobs = self._jobs, []
                        break
                    job = self._choose()
                    if job is not None:
                        left = []
                        break
                    self._changed.wait()
            if self._closed:
                for rest in left:
                    rest.close_iterator()
                    rest.post(None, over=True, error=None)
                return
            if job is not None:
                self._advance(job)

    def _choose(self) -> Speech | None:
        """Earliest deadline among those whose consumer has room; asked anew at every piece.

        A clause that is being heard and would run dry within one piece's work goes before all that
        have not begun, late ones included: a hole in a word is worse than a later start.
        """
        soon = self._clock.now() + self._piece_s
        best: tuple[bool, float, int] | None = None
        chosen: Speech | None = None
        for job in self._jobs:
            if job.pending >= self._max_pending:
                continue
            deadline = _deadline(job)
            key = (not (job.pieces_made and deadline <= soon), deadline, job.order)
            if best is None or key < best:
                best, chosen = key, job
        return chosen

    def _advance(self, job: Speech) -> None:
        began = self._clock.now()
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
            self._account(job, piece, now - began, now)
            if error is not None:
                self._failed += 1
            if deliver:
                job.pending += 1
            if over and job in self._jobs:
                self._jobs.remove(job)
        if over or job.is_cancelled():
            job.close_iterator()
        if deliver or over:
            job.post(piece if deliver else None, over=over, error=error)

    def _account(self, job: Speech, piece: AudioPiece | None, took_s: float, now: float) -> None:
        self._busy_s += took_s
        job.work_s += took_s
        if piece is None or not len(piece.pcm):
            return
        sound_s = len(piece.pcm) / OUT_RATE
        self._pieces += 1
        self._audio_s += sound_s
        job.made_s += sound_s
        self._piece_s += _SMOOTHING * (took_s - self._piece_s)
        job.pieces_made += 1
        if job.is_cancelled():
            self._wasted_s += sound_s
            return
        late_s = now - _deadline(job)
        if late_s > 0:
            self._late += 1
            self._worst_late_s = max(self._worst_late_s, late_s)
        if job.pieces_made == 1:
            self._clauses += 1
            old = self._first_piece_s or job.work_s
            self._first_piece_s = old + _SMOOTHING * (job.work_s - old)


def _deadline(job: Speech) -> float:
    """A deadline callable of the caller's that fails must not stop the thread for everybody."""
    try:
        return job.deadline_s()
    except Exception:
        log.exception("deadline of a clause cannot be read")
        return float("inf")
