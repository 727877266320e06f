"""One clause on its way through the voice: worked on by a thread, taken by a loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from voice_agent.scope import CancelScope
from voice_agent.types import OUT_RATE

from .base import AudioPiece, Clause, Voice
from .estimate import timed

if TYPE_CHECKING:
    from .service import VoiceService

log = logging.getLogger(__name__)


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
        self._needed_s = deadline_s
        self.cancelled = False
        self.pending = 0  # made and not taken; guarded by the service's lock
        self.pending_s = 0.0  # their sound
        self.busy = False  # a worker is inside it; likewise
        self.later_s = float("-inf")  # what a missed deadline was put off to
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

    @property
    def voice_name(self) -> str:
        return self._voice.name

    @property
    def size(self) -> int:
        """Words: what the work for a first piece grows with."""
        return len(self.clause.words)

    @property
    def sounding(self) -> bool:
        """Its reply is being heard, by this clause or an earlier one."""
        return self._scope.sounding

    @property
    def put_off(self) -> bool:
        return self.later_s > float("-inf")

    @property
    def needed_s(self) -> float:
        """When the ear needs its next sound."""
        try:
            return self._needed_s()
        except Exception:  # a callable of the caller's must not stop the thread for everybody
            log.exception("deadline of a clause cannot be read")
            return float("inf")

    @property
    def deadline_s(self) -> float:
        """By when its next piece ought to be made: what is made and not taken is not missing, and
        a first clause that could not be in time has been put off, once."""
        needed_s = self.needed_s + self.pending_s
        return needed_s if self.sounding else max(needed_s, self.later_s)

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
        self._service._taken(self, len(piece.pcm) / OUT_RATE)
        return piece

    async def aclose(self) -> None:
        self.cancel()
