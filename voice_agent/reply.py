"""One reply on its way out: model text -> clauses -> voice -> playout, under one scope.

A reply may run *early*, before the turn is committed: it then thinks and makes the voice of its
first clause only, and nothing leaves until `release()`. Cancelling the scope stops every part;
what was produced and not played was never history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from engine.sampling import SamplingParams
from engine.text.tool_calls import CallArguments, CallBegins, Content, ToolCallReader
from engine.text.tool_calls import Event as Written
from engine.text.tools import OPEN

from .clauses import ClauseSplitter
from .clock import Clock
from .context import Message, Prompt
from .errors import InternalError, VoiceAgentError
from .playout import Playout
from .scope import CancelScope
from .think import Source, Thinker, Thinking, ThoughtUsage
from .tools.base import AskedCall, Tool
from .trace import Mark, TurnTrace
from .tts.base import AudioPiece, Clause
from .types import OUT_RATE, ReplyId

log = logging.getLogger(__name__)

AHEAD_S = 6.0  # voice made ahead of the ear; more would be waste at the next barge-in
CLAUSE_QUEUE = 64
SHORT_WORDS, SENTENCE_ENDS = 12, (".", "!", "?")
WORD_S = 0.3  # of sound, until the reply's own pace is known


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
    def reply_asks(self, reply: Reply) -> None: ...
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
        tools: Mapping[str, Tool] | None = None,
        step: int = 0,
        may_be_silent: bool = False,
        aloud: bool = True,
        short: bool = False,
    ) -> None:
        """tools: what the model may call, by name. step: how many replies before this one asked for
        them in a row. may_be_silent: nothing to say is no fault. aloud: False: it is only written,
        and heard as soon as it is told. short: it ends with the sentence after `SHORT_WORDS`."""
        self.id = reply_id
        self.scope = scope
        self.trace = trace
        self.text = ""
        self.written = ""  # as the model wrote it, calls of tools included
        self.ids: list[int] = []
        self.calls: list[AskedCall] = []  # grows until `asks`
        self.asks = False
        self.step = step
        self.released_s = 0.0
        self.finish: str | None = None
        self.n_clauses = 0
        self.spoken_words = 0
        self.audio_samples = 0
        self.user_text: str | None = None  # the text an early reply assumed
        self.fixed = False  # words of ours, not the model's (greeting, recovery, goodbye)
        self.voices_early = True  # before the release: the first clause
        self.failed = False  # no more comes; what was made of it is played to its end
        self.aloud = aloud
        self.told_chars = 0  # of the text, told to the transport
        self.shortened = False  # it ended earlier than the model meant, under load
        self._said_words = 0
        self.tools: Mapping[str, Tool] = tools or {}
        self.after: Message | None = None  # the history's last message when it got the floor
        self._clock = clock
        self._playout = playout
        self._voiced = voiced
        self._listener = listener
        self._deadline_s = deadline_s
        self._may_be_silent = may_be_silent
        self._short = short
        self._reader: ToolCallReader | None = None
        self._thinking: Thinking | None = None
        self._released = asyncio.Event()
        self._held_back: list[tuple[Clause, AudioPiece | None]] = []
        self._produced = False
        self._room = asyncio.Event()
        self._cut_words = 0  # of clauses that wait for the voice
        self._unsaid_words = 0  # of the clause that is being voiced, without a sound yet
        self._sounded_words = 0
        self._last_clause = -1  # text of a clause is announced once, with its first piece
        self._last_sounded = -1

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

    def text_due_s(self) -> float:
        """When the ear needs what the model has not written yet: after the sound that is there, and
        that of the words which the voice has or will be given."""
        waiting = self._cut_words + self._unsaid_words
        if self._sounded_words:
            word_s = self.audio_samples / OUT_RATE / self._sounded_words
        else:
            word_s = WORD_S / self._voiced.speed
        return self.deadline_s() + waiting * word_s

    def release(self, deadline_s: float | None = None) -> None:
        """The turn is committed: what is ready leaves now, the rest as it comes."""
        if self.released or self.scope.cancelled:
            return
        if deadline_s is not None:
            self._deadline_s = deadline_s
            if self._thinking is not None:
                self._thinking.set_deadline(self.text_due_s())
        self._released.set()
        self.released_s = self._clock.now()
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
        splitter = self._begin()
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
                    for clause in splitter.push(self._to_say(thought.text)):
                        await self._queue_clause(queue, clause)
                        if self._ends_short(clause):
                            break
                    if self.shortened:
                        break
        if not self.scope.cancelled:
            if not self.shortened:
                for clause in [*splitter.push(self._to_say(None)), *splitter.finish()]:
                    await self._queue_clause(queue, clause)
            self._mark(Mark.LLM_DONE)
            if self.calls:
                self.asks = True
                self._listener.reply_asks(self)
        await queue.put(None)

    def _ends_short(self, clause: Clause) -> bool:
        """Whether the reply is over with this clause, because load asks for short ones. What the
        model wrote after it was never said."""
        self._said_words += len(clause.words)
        full = self._said_words >= SHORT_WORDS and clause.text.rstrip().endswith(SENTENCE_ENDS)
        if self._short and full and not self.calls and self.written == self.text:
            self.text = self.text[: clause.span[1]]
            self.shortened, self.finish = True, "stop"
        return self.shortened

    def _begin(self) -> ClauseSplitter:
        self.text, self.written, self.ids, self.calls = "", "", [], []
        self._said_words = 0
        self._reader = ToolCallReader(self.tools) if self.tools else None
        return self._voiced.splitter()

    def _start_over(self) -> ClauseSplitter:
        """Another backend answers; of the first one's text no clause was cut."""
        if self.trace is not None:
            self.trace.marks.pop(Mark.LLM_FIRST_TEXT, None)
        return self._begin()

    def _to_say(self, written: str | None) -> str:
        """What is to be heard of the next piece of model text; calls are taken out of it and kept.

        None: nothing follows. Text after a call is dropped: the results will be spoken of instead.
        """
        self.written += written or ""
        if self._reader is None:
            self.text += written or ""
            return written or ""
        said = ""
        events = self._reader.finish() if written is None else self._reader.push(written)
        for event in events:
            said += self._sort_out(event)
        self.text += said
        return said

    def _sort_out(self, event: Written) -> str:
        match event:
            case CallBegins(_, name):
                if self._thinking is not None:
                    self._thinking.keep()
                self.calls.append(AskedCall(name, ""))
            case CallArguments(index, text):
                call = self.calls[index]
                self.calls[index] = AskedCall(call.name, call.arguments + text)
            case Content(text) if not self.calls:
                if OPEN not in text:
                    return text
                log.warning("a call of a tool could not be read", extra={"reply": str(self.id)})
        return ""

    async def _queue_clause(self, queue: asyncio.Queue[Clause | None], clause: Clause) -> None:
        if self._thinking is not None:
            self._thinking.keep()
        if clause.words:
            self._mark(Mark.FIRST_CLAUSE)
        self._cut_words += len(clause.words)
        await queue.put(clause)
        if self.released and self._thinking is not None:
            self._thinking.set_deadline(self.text_due_s())

    async def _voice(self, queue: asyncio.Queue[Clause | None]) -> None:
        while (clause := await queue.get()) is not None:
            if self.scope.cancelled:
                continue
            if not self.released and clause.words and self.aloud:
                await self._wait_for_release()
            self._cut_words -= len(clause.words)
            await self._speak(clause)

    async def _wait_for_release(self) -> None:
        """Only the first clause is voiced early, and only where that is allowed."""
        if self.spoken_words:
            await self._released.wait()
        elif not self.voices_early:
            self._listener.reply_ready(self)
            await self._released.wait()

    async def _speak(self, clause: Clause) -> None:
        self.n_clauses += 1
        if not clause.words or not self.aloud:
            self._deliver(clause, None)
            return
        self._unsaid_words = len(clause.words)
        await self._wait_for_room()
        self.spoken_words += len(clause.words)
        try:
            if await self._sound(clause):
                return
            log.warning("a clause made no sound", extra={"reply": str(self.id)})
        except VoiceAgentError as error:
            if self._last_sounded == clause.index:
                raise  # half of it is heard: it can't be said again
            log.warning("a clause failed: %s", error, extra={"reply": str(self.id)})
        if not await self._sound(clause):
            raise InternalError("the voice made no sound", code="VA322")

    async def _sound(self, clause: Clause) -> bool:
        """Voice a clause. False if nothing of it can be heard."""
        async for piece in self._voiced.speaker.speak(
            clause, speed=self._voiced.speed, deadline_s=self.deadline_s, scope=self.scope
        ):
            if self.scope.cancelled:
                return True
            if len(piece.pcm):
                self._last_sounded = clause.index
                self._mark(Mark.TTS_FIRST_AUDIO)
            if self._last_sounded == clause.index:
                self._deliver(clause, piece)
        return self.scope.cancelled or self._last_sounded == clause.index

    async def _wait_for_room(self) -> None:
        while self.released and self._playout.buffered_s >= AHEAD_S and not self.scope.cancelled:
            self._room.clear()
            await self._room.wait()

    async def recite(self, text: str, ids: Sequence[int]) -> None:
        """Speak words of ours: a greeting, a recovery. ids: their tokens."""
        self.fixed = True
        self.ids = list(ids)
        self.text = text
        splitter = self._voiced.splitter()
        try:
            for clause in [*splitter.push(text), *splitter.finish()]:
                await self._speak(clause)
            self._finish()
        except Exception as error:
            self._fail(error)

    def cut_short(self) -> None:
        """Nothing more is made; it is over when what there is has been played."""
        self.failed = True
        self.scope.cancel()
        self._playout.end(self.id)

    # ------------------------------------------------------------ hand-over to playout

    def _deliver(self, clause: Clause, piece: AudioPiece | None) -> None:
        first = self.audio_samples == 0 if piece is not None else not self.aloud
        if piece is not None:
            self.audio_samples += len(piece.pcm)
            self._sounded_words += len(piece.words)
            self._unsaid_words = 0 if piece.last else self._unsaid_words - len(piece.words)
        if self.released:
            self._emit(clause, piece)
            return
        self._held_back.append((clause, piece))
        if first:
            self._listener.reply_ready(self)

    def _emit(self, clause: Clause, piece: AudioPiece | None) -> None:
        if clause.index > self._last_clause:
            self._last_clause = clause.index
            self.told_chars = clause.span[1]
            self._listener.reply_text(self, clause)
        if piece is not None:  # a clause without words is heard once the reply has finished
            self._playout.push(self.id, clause, piece)
            self.scope.sounding = True
            if self._thinking is not None:  # this much later does the ear need the next word
                self._thinking.set_deadline(self.text_due_s())

    def _finish(self) -> None:
        if self.scope.cancelled:
            return
        said = self.spoken_words > 0 if self.aloud else bool(self.text.strip())
        silent = not self.fixed and not said and not self.calls
        if silent and not self._may_be_silent:
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
