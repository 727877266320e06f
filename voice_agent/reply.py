"""One reply on its way out: model text -> clauses -> voice -> playout, under one scope.

A reply may run *early*, before the turn is committed: it then thinks and makes the voice of its
first clause only, and nothing leaves until `release()`. Cancelling the scope stops every part;
what was produced and not played was never history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from engine.sampling import SamplingParams

from .clauses import ClauseSplitter
from .clock import Clock
from .context import Prompt
from .errors import InternalError, VoiceAgentError
from .playout import Playout
from .scope import CancelScope
from .think import Source, Thinker, Thinking, ThoughtUsage
from .trace import Mark, TurnTrace
from .tts.base import AudioPiece, Clause
from .types import ReplyId

log = logging.getLogger(__name__)

AHEAD_S = 6.0  # voice made ahead of the ear; more would be waste at the next barge-in
CLAUSE_QUEUE = 64


class Speaker(Protocol):
    """The voice as a reply sees it (voice_agent.tts.service.VoiceService)."""

    def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]: ...


class ReplyListener(Protocol):
    """What a call learns of its reply, on the event loop, in order."""

    def reply_ready(self, reply: Reply) -> None: ...
    def reply_text(self, reply: Reply, clause: Clause) -> None: ...
    def reply_produced(self, reply: Reply) -> None: ...
    def reply_failed(self, reply: Reply, error: Exception) -> None: ...


@dataclass(frozen=True, slots=True)
class Voiced:
    """How a call's voice sounds."""

    speaker: Speaker
    speed: float
    splitter: Callable[[], ClauseSplitter]


class Reply:
    """Owns the production of one reply; `run()` is its one task."""

    def __init__(
        self,
        reply_id: ReplyId,
        scope: CancelScope,
        *,
        clock: Clock,
        playout: Playout,
        voiced: Voiced,
        listener: ReplyListener,
        trace: TurnTrace | None,
        deadline_s: float,
    ) -> None:
        self.id = reply_id
        self.scope = scope
        self.trace = trace
        self.text = ""
        self.ids: list[int] = []
        self.finish: str | None = None
        self.n_clauses = 0
        self.spoken_words = 0
        self.audio_samples = 0
        self.user_text: str | None = None  # the text an early reply assumed
        self.fixed = False  # words of ours, not the model's (greeting, recovery, goodbye)
        self._clock = clock
        self._playout = playout
        self._voiced = voiced
        self._listener = listener
        self._deadline_s = deadline_s
        self._thinking: Thinking | None = None
        self._released = asyncio.Event()
        self._held_back: list[tuple[Clause, AudioPiece | None]] = []
        self._produced = False
        self._room = asyncio.Event()
        self._last_clause = -1  # text of a clause is announced once, with its first piece

    # ------------------------------------------------------------ control

    @property
    def usage(self) -> ThoughtUsage | None:
        """The model's tokens so far; None for words of ours."""
        return self._thinking.usage if self._thinking is not None else None

    @property
    def source(self) -> Source | None:
        """Who made the text; None for words of ours."""
        return self._thinking.source if self._thinking is not None else None

    @property
    def released(self) -> bool:
        return self._released.is_set()

    def deadline_s(self) -> float:
        """When the ear next needs sound: the turn's deadline, then the moment playout runs dry."""
        if self.released and self._playout.speaking:
            return self._clock.now() + self._playout.buffered_s
        return self._deadline_s

    def release(self, deadline_s: float | None = None) -> None:
        """The turn is committed: what is ready leaves now, the rest as it comes."""
        if self.released or self.scope.cancelled:
            return
        if deadline_s is not None:
            self._deadline_s = deadline_s
            if self._thinking is not None:
                self._thinking.set_deadline(deadline_s)
        self._released.set()
        self._playout.begin(self.id)
        held, self._held_back = self._held_back, []
        for clause, piece in held:
            self._emit(clause, piece)
        if self._produced:
            self._playout.end(self.id)
            self._listener.reply_produced(self)

    def on_tick(self) -> None:
        """The clock's owner pulled a frame: there may be room to make more voice."""
        if not self._room.is_set() and self._playout.buffered_s < AHEAD_S:
            self._room.set()

    # ------------------------------------------------------------ production

    async def think(
        self,
        thinker: Thinker,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
    ) -> None:
        """Generate, cut and speak until the end or the cancel. Never raises but on task cancel."""
        queue: asyncio.Queue[Clause | None] = asyncio.Queue(CLAUSE_QUEUE)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._voice(queue))
                await self._generate(thinker, prompt, sampling, call, tenant, queue)
            self._finish()
        except* VoiceAgentError as errors:
            self._fail(errors.exceptions[0])
        except* Exception as errors:
            self._fail(errors.exceptions[0])

    async def _generate(
        self,
        thinker: Thinker,
        prompt: Prompt,
        sampling: SamplingParams,
        call: str,
        tenant: str,
        queue: asyncio.Queue[Clause | None],
    ) -> None:
        splitter = self._voiced.splitter()
        self._mark(Mark.LLM_SUBMIT)
        self._thinking = thinker.think(
            prompt,
            sampling,
            call=call,
            tenant=tenant,
            deadline_s=self._deadline_s,
            scope=self.scope,
        )
        async with aclosing(self._thinking.__aiter__()) as thoughts:
            async for thought in thoughts:
                if self.scope.cancelled:
                    break
                if thought.fresh:
                    splitter = self._start_over()
                self.ids.extend(thought.token_ids)
                self.finish = thought.finish or self.finish
                if thought.text:
                    self._mark(Mark.LLM_FIRST_TEXT)
                    self.text += thought.text
                    for clause in splitter.push(thought.text):
                        await self._queue_clause(queue, clause)
        if not self.scope.cancelled:
            for clause in splitter.finish():
                await self._queue_clause(queue, clause)
            self._mark(Mark.LLM_DONE)
        await queue.put(None)

    def _start_over(self) -> ClauseSplitter:
        """Another backend answers; of the first one's text no clause was cut."""
        self.text, self.ids = "", []
        if self.trace is not None:
            self.trace.marks.pop(Mark.LLM_FIRST_TEXT, None)
        return self._voiced.splitter()

    async def _queue_clause(self, queue: asyncio.Queue[Clause | None], clause: Clause) -> None:
        if self._thinking is not None:
            self._thinking.keep()
        if clause.words:
            self._mark(Mark.FIRST_CLAUSE)
        await queue.put(clause)
        if self.released and self._thinking is not None:
            self._thinking.set_deadline(self.deadline_s())

    async def _voice(self, queue: asyncio.Queue[Clause | None]) -> None:
        while (clause := await queue.get()) is not None:
            if self.scope.cancelled:
                continue
            if self.spoken_words and not self.released:
                await self._released.wait()
            await self._speak(clause)

    async def _speak(self, clause: Clause) -> None:
        self.n_clauses += 1
        if not clause.words:
            self._deliver(clause, None)
            return
        await self._wait_for_room()
        self.spoken_words += len(clause.words)
        async for piece in self._voiced.speaker.speak(
            clause, speed=self._voiced.speed, deadline_s=self.deadline_s, scope=self.scope
        ):
            if self.scope.cancelled:
                return
            self._mark(Mark.TTS_FIRST_AUDIO)
            self._deliver(clause, piece)

    async def _wait_for_room(self) -> None:
        while self.released and self._playout.buffered_s >= AHEAD_S and not self.scope.cancelled:
            self._room.clear()
            await self._room.wait()

    def say(
        self, clauses: Sequence[tuple[Clause, Sequence[AudioPiece]]], ids: Sequence[int]
    ) -> None:
        """Speak what is ready: a greeting or a recovery made at start. ids: its tokens."""
        self.fixed = True
        self.ids = list(ids)
        for clause, pieces in clauses:
            self.text += clause.text
            self.n_clauses += 1
            self.spoken_words += len(clause.words)
            if not pieces:
                self._deliver(clause, None)
            for piece in pieces:
                self._deliver(clause, piece)
        self._finish()

    async def recite(self, text: str, ids: Sequence[int]) -> None:
        """Speak a fixed text whose sound is not made yet."""
        self.fixed = True
        self.ids = list(ids)
        self.text = text
        splitter = self._voiced.splitter()
        try:
            for clause in [*splitter.push(text), *splitter.finish()]:
                await self._speak(clause)
            self._finish()
        except VoiceAgentError as error:
            self._fail(error)

    # ------------------------------------------------------------ hand-over to playout

    def _deliver(self, clause: Clause, piece: AudioPiece | None) -> None:
        first = piece is not None and self.audio_samples == 0
        if piece is not None:
            self.audio_samples += len(piece.pcm)
        if self.released:
            self._emit(clause, piece)
            return
        self._held_back.append((clause, piece))
        if first:
            self._listener.reply_ready(self)

    def _emit(self, clause: Clause, piece: AudioPiece | None) -> None:
        if clause.index > self._last_clause:
            self._last_clause = clause.index
            self._listener.reply_text(self, clause)
        if piece is not None:  # a clause without words is heard once the reply has finished
            self._playout.push(self.id, clause, piece)
            if self._thinking is not None:  # this much later does the ear need the next word
                self._thinking.set_deadline(self.deadline_s())

    def _finish(self) -> None:
        if self.scope.cancelled:
            return
        if not self.fixed and self.spoken_words == 0:
            self._fail(InternalError("the reply had nothing to say aloud", code="VA320"))
            return
        self._produced = True
        if self.released:
            self._playout.end(self.id)
            self._listener.reply_produced(self)

    def _fail(self, error: BaseException) -> None:
        if self.scope.cancelled:
            return
        if not isinstance(error, Exception):
            raise error
        log.warning("reply failed: %s", error, extra={"reply": str(self.id)})
        self._listener.reply_failed(self, error)

    def _mark(self, mark: Mark) -> None:
        if self.trace is not None:
            self.trace.mark(mark, self._clock.now())
