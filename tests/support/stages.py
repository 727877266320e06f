"""Stages in virtual time around the real queues: work takes as long as it is said to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.support.fakes import FakeRecognizer
from tests.support.virtual_loop import VirtualLoop
from voice_agent.stt.base import Transcript
from voice_agent.stt.jobs import Job, JobQueue
from voice_agent.tts.base import AudioPiece, Clause
from voice_agent.tts.service import VoiceService
from voice_agent.tts.speech import Speech
from voice_agent.types import IN_RATE, OUT_RATE, PcmF32

IDLE_S = 0.002
"""A virtual worker without work looks again so much later."""


@dataclass(frozen=True)
class Cost:
    """Seconds of work: so many, and so many for each second of sound."""

    base_s: float
    per_s: float

    def of(self, sound_s: float) -> float:
        return self.base_s + self.per_s * sound_s


@dataclass
class _Asked:
    pcm: PcmF32
    answer: asyncio.Future[Transcript]


class VirtualRecognizer:
    """The real queue and one worker; hears the code of tests/support/fakes.py."""

    name = "virtual"
    sample_rate = IN_RATE

    def __init__(self, loop: VirtualLoop, cost: Cost, target_s: float = 0.6) -> None:
        self.queue: JobQueue[_Asked] = JobQueue(256, loop.now, target_s)
        self.busy_s = 0.0
        self.passes = 0
        self._cost = cost
        self._words = FakeRecognizer(delay_s=0.0)

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        answer: asyncio.Future[Transcript] = asyncio.get_running_loop().create_future()

        def drop(error: BaseException) -> None:
            if not answer.done():
                answer.set_exception(error)

        took_s = self._cost.of(len(pcm) / IN_RATE)
        job = Job(_Asked(pcm, answer), final, deadline_s, key, drop, took_s)
        self.queue.put(job)
        try:
            return await answer
        finally:
            self.queue.cancel(job)

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            if not len(self.queue):
                await asyncio.sleep(IDLE_S)
                continue
            job = self.queue.take()
            assert job is not None
            await asyncio.sleep(job.service_s)
            self.busy_s += job.service_s
            self.passes += 1
            heard = await self._words.transcribe(job.payload.pcm)
            if not job.payload.answer.done():
                job.payload.answer.set_result(replace(heard, compute_s=job.service_s))

    def promote(self, key: Hashable) -> None:
        self.queue.promote(key)

    def demote(self, key: Hashable) -> None:
        self.queue.demote(key)

    def warm(self) -> None: ...

    def close(self) -> None: ...


class VirtualVoice:
    """`WORD_S` of sound a word, in pieces of up to `piece_words`."""

    name = "virtual"
    exact_times = True
    WORD_S = 0.3

    def __init__(self, cost: Cost, piece_words: int = 3) -> None:
        self.cost = cost
        self.piece_words = piece_words

    def work_s(self, job: Speech) -> float:
        """What its next piece takes."""
        left = len(job.clause.words) - job.pieces_made * self.piece_words
        return self.cost.of(self.WORD_S * min(left, self.piece_words))

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        left = len(clause.words)
        while left and not cancelled():
            n = min(left, self.piece_words)
            left -= n
            yield AudioPiece(np.zeros(int(n * self.WORD_S * OUT_RATE), np.int16), (), not left)

    def warm(self) -> None: ...


async def speak_in_time(service: VoiceService, voice: VirtualVoice, loop: VirtualLoop) -> None:
    """A worker of the real service, each piece after its work; until cancelled."""
    while True:
        job = service.take(wait=False)
        if job is None:
            await asyncio.sleep(IDLE_S)
            continue
        began_s = loop.now()
        await asyncio.sleep(voice.work_s(job))
        service.advance(job, began_s)
