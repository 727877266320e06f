"""The stages around the engine: the real queues and the real order, work that takes modelled time.

Who asks is told by `CALLER`, which every task of a call inherits. The baseline's stages (`arrival`)
serve in the order of arrival.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from voice_agent.service_time import ServiceTime
from voice_agent.stt.base import Transcript
from voice_agent.stt.jobs import Job, JobQueue
from voice_agent.tts.base import AudioPiece, Clause, WordTime
from voice_agent.tts.service import VoiceService
from voice_agent.tts.speech import Speech
from voice_agent.types import IN_FRAME, IN_RATE, OUT_RATE, Frame, FrameFlag, PcmF32
from voice_agent.vad import WINDOW, VadWindow

from .clock import Cores, ServerLoop
from .times import SttTimes, VoiceTimes

QUEUE = 64
WAITING = 64
_SOUND_S = 120
LEVEL = 3000
USUAL_S, USUAL_WORDS = 3.0, 9
"""Of the pass that is timed when a server starts."""


class Speaking(Protocol):
    """Whom the stages hear."""

    name: str
    """Of the call."""
    heard: int
    """Samples that the call's ear has judged."""

    def voice_at(self, sample: int) -> float:
        """The detector's probability for the window that begins there."""
        ...

    def words_between(self, begin: int, end: int) -> tuple[str, ...]:
        """Words that are whole in these samples."""
        ...

    def complete_at(self, sample: int) -> float:
        """The end-of-turn model's estimate of a pause there."""
        ...


CALLER: ContextVar[Speaking] = ContextVar("caller")


class KnownVad:
    """Implements what a call needs of `VadService`; its time is part of the event loop's."""

    busy_s = 0.0
    calls = 0

    def __init__(self) -> None:
        self.n_open = 0

    def open(self) -> KnownStream:
        self.n_open += 1
        return KnownStream(self, CALLER.get())


class KnownStream:
    def __init__(self, vad: KnownVad, caller: Speaking) -> None:
        self._vad = vad
        self._caller = caller
        self._next = WINDOW
        caller.heard = 0

    async def push(self, frame: Frame) -> list[VadWindow]:
        caller, out = self._caller, list[VadWindow]()
        caller.heard += IN_FRAME
        while self._next <= caller.heard:
            start = self._next - WINDOW
            concealed = frame.flag is FrameFlag.CONCEALED
            prob = 0.0 if concealed else caller.voice_at(start)
            out.append(VadWindow(prob, start, self._next, concealed))
            self._next += WINDOW
        return out

    def close(self) -> None:
        self._vad.n_open -= 1


class KnownSmartTurn:
    """One worker, first come first served, as `SmartTurn` is."""

    def __init__(self, cores: Cores, ms: float) -> None:
        self._cores = cores
        self._seconds = ms / 1000
        self._worker = asyncio.Lock()
        self._waiting = 0
        self.busy_s = self.work_s = 0.0

    async def score(self, pcm: PcmF32) -> float | None:
        caller = CALLER.get()
        p_complete = caller.complete_at(caller.heard)
        if self._waiting >= WAITING:
            return None
        self._waiting += 1
        try:
            async with self._worker:
                self.busy_s += await self._cores.work(self._seconds)
                self.work_s += self._seconds
        finally:
            self._waiting -= 1
        return p_complete


@dataclass(slots=True, eq=False)
class _Pass:
    sound_s: float
    words: tuple[str, ...]
    n_confirmed: int
    final: bool
    answer: asyncio.Future[Transcript]


class KnownRecognizer:
    """Implements `Recognizer` over the real `JobQueue`, and learns its times as it does."""

    name = "known"
    sample_rate = IN_RATE

    def __init__(
        self,
        times: SttTimes,
        loop: ServerLoop,
        cores: Cores,
        target_s: float,
        *,
        workers: int = 1,
        arrival: bool = False,
    ) -> None:
        self._times = times
        self._cores = cores
        self._queue: JobQueue[_Pass] = JobQueue(QUEUE, loop.time, target_s)
        self._rung = asyncio.Event()
        self._arrival = arrival
        self._order = 0
        self.workers = workers
        self.service = ServiceTime(times.pass_s(USUAL_S, USUAL_WORDS))
        self.passes = 0
        self.busy_s = self.work_s = 0.0

    def start(self) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        return [loop.create_task(self._work()) for _ in range(self.workers)]

    @property
    def n_waiting(self) -> int:
        return len(self._queue)

    @property
    def wait_s(self) -> float:
        return self._queue.work_s / self.workers

    @property
    def missed(self) -> int:
        return self._queue.missed

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        caller = CALLER.get()
        words = caller.words_between(caller.heard - len(pcm), caller.heard)
        n_confirmed = min(len(prefix), len(words))
        answer: asyncio.Future[Transcript] = asyncio.get_running_loop().create_future()

        def drop(error: BaseException) -> None:
            if not answer.done():
                answer.set_exception(error)

        asked = _Pass(len(pcm) / IN_RATE, words, n_confirmed, final, answer)
        self._order += 1
        service_s = self.service.seconds(asked.sound_s)
        job = (
            Job(asked, False, float(self._order), key, drop)
            if self._arrival
            else Job(asked, final, deadline_s, key, drop, service_s)
        )
        self._queue.put(job)
        self._rung.set()
        try:
            return await answer
        finally:
            self._queue.cancel(job)

    async def _work(self) -> None:
        while True:
            while not len(self._queue):
                self._rung.clear()
                await self._rung.wait()
            job = self._queue.take()
            assert job is not None
            asked = job.payload
            seconds = self._times.pass_s(asked.sound_s, len(asked.words))
            took_s = await self._cores.work(seconds)
            self.busy_s += took_s
            self.work_s += seconds
            self.passes += 1
            self.service.note(took_s, asked.sound_s)
            if not asked.answer.done():
                asked.answer.set_result(
                    Transcript(asked.words, asked.n_confirmed, asked.sound_s, seconds, 0.0,
                               asked.final)
                )  # fmt: skip

    def promote(self, key: Hashable) -> None:
        if not self._arrival:
            self._queue.promote(key)

    def demote(self, key: Hashable) -> None:
        if not self._arrival:
            self._queue.demote(key)

    def warm(self) -> None: ...

    def close(self) -> None: ...


class KnownVoice:
    """A voice whose clauses are as long as their words; its sound is a constant."""

    name = "known"
    exact_times = True

    def __init__(self, times: VoiceTimes) -> None:
        self.times = times
        self._sound = np.full(_SOUND_S * OUT_RATE, LEVEL, np.int16)

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        n_words = len(clause.words)
        lengths = [round(s * OUT_RATE) for s in self.times.lengths(n_words, clause.index)]
        word = sum(lengths) / n_words
        spans = [WordTime(i, round(i * word), round((i + 1) * word)) for i in range(n_words)]
        at = 0
        for i, n in enumerate(lengths):
            if cancelled():
                return
            words = tuple(w for w in spans if at <= w.start < at + n)
            yield AudioPiece(self._sound[:n], words, i == len(lengths) - 1)
            at += n

    def warm(self) -> None: ...


class _Bell(threading.Condition):
    """Rings for a task instead of waking a thread."""

    def __init__(self, rung: asyncio.Event) -> None:
        super().__init__()
        self._rung = rung

    def notify(self, n: int = 1) -> None:
        self._rung.set()


class KnownVoices(VoiceService):
    """The real service: its queue, its choice, its bookkeeping. Its threads' work is a task's."""

    def __init__(
        self,
        voice: KnownVoice,
        loop: ServerLoop,
        cores: Cores,
        target_s: float,
        *,
        workers: int = 1,
        arrival: bool = False,
    ) -> None:
        super().__init__(voice, loop, workers=0, target_s=target_s)
        self.workers = workers
        self._rung = asyncio.Event()
        self._changed = _Bell(self._rung)
        self._arrival = arrival
        self._cores = cores
        self._times = voice.times
        self._loop_clock = loop
        self.work_s = 0.0

    def start(self) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        return [loop.create_task(self._serve()) for _ in range(self.workers)]

    async def _serve(self) -> None:
        """Make piece after piece; until cancelled."""
        while True:
            self._rung.clear()
            job = self.take(wait=False)
            if job is None:
                await self._rung.wait()
                continue
            began_s = self._loop_clock.time()
            seconds = self._times.work_s(job.size, job.clause.index, job.pieces_made)
            self.work_s += seconds
            await self._cores.work(seconds)
            self.advance(job, began_s)

    def _choose(self) -> Speech | None:
        if not self._arrival:
            return super()._choose()
        waiting = [j for j in self._jobs if not j.busy and j.pending < self._max_pending]
        return min(waiting, key=lambda job: job.order, default=None)
