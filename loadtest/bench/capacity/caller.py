"""One caller of a real `Call`, whatever its stages and its clock: speaks, listens, speaks again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from voice_agent.agent import Call
from voice_agent.clock import Clock
from voice_agent.events import CallFault, Event, ReplyDone, ReplyStatus, TurnTraced
from voice_agent.types import IN_FRAME, IN_RATE, SILENT_IN, Frame, FrameFlag
from voice_agent.vad import WINDOW

from .clips import ALIGN, Clip, Judge
from .path import path_ms

PAUSE_S = (1.0, 3.0)
STUCK_S = 15.0
SILENCE = Frame(SILENT_IN, FrameFlag.RECEIVED)
QUIET = 0.01
KEPT = 4


@dataclass(slots=True)
class Book:
    """What all callers of a run met, from `from_s` on. Times in ms.

    waits: caller's last voiced sample to our first audible frame. stuck: turns without an answer
    after `STUCK_S`. holes: frames of a reply that lacked sound. spoken: frames that had it.
    """

    from_s: float
    waits: list[float] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)
    paths: list[Mapping[str, float]] = field(default_factory=list)
    turns: int = 0
    stuck: int = 0
    holes: int = 0
    holed_replies: int = 0
    spoken: int = 0
    replies: int = 0
    failed: int = 0
    recoveries: int = 0
    cut: int = 0
    faults: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    words: int = 0
    tokens: int = 0
    clauses: int = 0
    partials: int = 0
    wasted_tokens: int = 0


class Caller:
    """Implements `stages.Speaking`. `tick` is the transport's, once in 20 ms."""

    def __init__(
        self,
        name: str,
        clips: Sequence[Clip],
        judge: Judge,
        rng: random.Random,
        clock: Clock,
        book: Book,
    ) -> None:
        self.name = name
        self.heard = 0
        self.call: Call | None = None
        self._clips = clips
        self._judge = judge
        self._rng = rng
        self._clock = clock
        self._book = book
        self._sent = 0
        self._said: list[tuple[int, Clip]] = []  # (first sample, what), the newest last
        self._next: int | None = self._aligned(rng.uniform(0.5, 2.0))
        self._ended_s: float | None = None  # when the last voiced sample left; None: not waiting
        self._holed = False
        self._answered = True

    # ------------------------------------------------------------ the transport

    def tick(self) -> None:
        call = self.call
        assert call is not None
        call.hear(self._frame())
        tick, now = call.tick(), self._clock.now()
        counted = now >= self._book.from_s
        if tick.audible:
            self._book.spoken += counted
            if self._ended_s is not None and not self._answered:
                self._answered = True
                if counted:
                    self._book.turns += 1
                    self._book.waits.append((now - self._ended_s) * 1000)
        if tick.underrun and counted:
            self._book.holes += 1
            self._book.holed_replies += not self._holed
            self._holed = True
        if self._ended_s is not None and now - self._ended_s > STUCK_S:
            if not self._answered:
                self._book.stuck += counted
                self._answered = True
            if not tick.audible and self._next is None:
                self._speak_again()

    def _frame(self) -> Frame:
        if self._next is not None and self._sent >= self._next:
            self._said = [*self._said[1 - KEPT :], (self._next, self._rng.choice(self._clips))]
            self._next = None
            self._ended_s = None
            self._answered = True
        frame = SILENCE
        if self._said:
            begin, clip = self._said[-1]
            at = self._sent - begin
            if 0 <= at < len(clip.pcm):
                frame = Frame(clip.pcm[at : at + IN_FRAME])
            if at <= clip.voiced_end < at + IN_FRAME:
                self._ended_s = self._clock.now()
                self._answered = False
                self._holed = False
        self._sent += IN_FRAME
        return frame

    def _speak_again(self) -> None:
        self._ended_s = None
        self._next = self._aligned(self._sent / IN_RATE + self._rng.uniform(*PAUSE_S))

    @staticmethod
    def _aligned(at_s: float) -> int:
        return -(-int(at_s * IN_RATE) // ALIGN) * ALIGN

    # ------------------------------------------------------------ the call's events

    def on_event(self, event: Event) -> None:
        counted = self._clock.now() >= self._book.from_s
        if isinstance(event, ReplyDone):
            self._reply_done(event, counted)
        elif isinstance(event, TurnTraced) and counted:
            trace, book = event.trace, self._book
            for name, ms in trace.stages_ms().items():
                book.stages.setdefault(name, []).append(ms)
            if (path := path_ms(trace)) is not None:
                book.paths.append(path)
            book.partials += trace.partials
            book.clauses += trace.clauses
            book.wasted_tokens += trace.wasted_tokens
            book.recoveries += trace.outcome == "recovery"
        elif isinstance(event, CallFault) and counted:
            self._book.faults.append(event.message)

    def _reply_done(self, event: ReplyDone, counted: bool) -> None:
        done = event.status is ReplyStatus.COMPLETED
        if counted:
            book = self._book
            book.replies += 1
            book.failed += event.status is ReplyStatus.FAILED
            book.cut += event.status is ReplyStatus.INTERRUPTED
            book.texts.append(event.text)
            book.words += len(event.text.split())
            book.tokens += event.output_tokens
        if self._ended_s is not None and self._answered and (done or event.audio_ms):
            self._speak_again()

    # ------------------------------------------------------------ what the stages hear

    def voice_at(self, sample: int) -> float:
        for begin, clip in reversed(self._said):
            if sample >= begin:
                at = (sample - begin) // WINDOW
                return clip.probs[at] if at < len(clip.probs) else QUIET
        return QUIET

    def words_between(self, begin: int, end: int) -> tuple[str, ...]:
        out: tuple[str, ...] = ()
        for start, clip in self._said:
            if start >= end or start + clip.voiced_end <= begin:
                continue
            out += clip.words[clip.words_by(begin - start) : clip.words_by(end - start)]
        return out

    def complete_at(self, sample: int) -> float:
        begin, clip = self._said[-1] if self._said else (0, self._clips[0])
        return self._judge.complete_at(clip, sample - begin)
