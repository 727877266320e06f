"""The shared recogniser: a Whisper model, its worker thread and its queue."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from voice_agent.clock import Clock, MonotonicClock
from voice_agent.errors import InternalError
from voice_agent.mel import RATE
from voice_agent.service_time import ServiceTime
from voice_agent.types import PcmF32
from voice_agent.vad import WINDOW, SileroVad

from .base import Transcript
from .guards import is_loop, is_made_up, is_quiet, is_suspicious
from .jobs import TARGET_S, Job, JobQueue
from .whisper_model import MAX_SECONDS, WhisperModel

log = logging.getLogger(__name__)

QUEUE_SIZE = 64
MIN_SECONDS = 0.1  # shorter audio holds no word
VOICED = 0.5


@dataclass(frozen=True, slots=True)
class _Request:
    pcm: PcmF32
    prefix: tuple[str, ...]
    final: bool
    answer: asyncio.Future[Transcript]
    loop: asyncio.AbstractEventLoop


_Job: TypeAlias = Job[_Request]


class WhisperRecognizer:
    """Implements `Recognizer`. `transcribe` is called on an event loop, the model runs on threads
    of its own.

    workers: passes at once; threads: of each. target_s: what a pass that is late already is given.
    device: "cpu" or "cuda". Raises UsageError at construction when model files are missing,
    InternalError when they can't be loaded there.
    """

    sample_rate = RATE

    def __init__(
        self,
        model_dir: Path,
        threads: int = 1,
        clock: Clock | None = None,
        language: str = "en",
        vad: SileroVad | None = None,
        *,
        device: str = "cpu",
        workers: int = 1,
        target_s: float = TARGET_S,
    ) -> None:
        self.name = model_dir.name
        self.workers = workers
        self.model = WhisperModel(model_dir, threads, language, device=device, workers=workers)
        self._clock = clock or MonotonicClock()
        self._vad = vad or SileroVad()
        self._queue: JobQueue[_Request] = JobQueue(QUEUE_SIZE, self._clock.now, target_s)
        self.service = ServiceTime()
        """Of a pass, over the seconds of its audio."""
        self.passes = 0
        self.busy_s = 0.0
        self._counting = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"recognizer-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether the threads run."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def n_waiting(self) -> int:
        """Requests queued and not started."""
        return len(self._queue)

    @property
    def wait_s(self) -> float:
        """Predicted seconds until a request asked for now, after all that wait, would begin."""
        return self._queue.work_s / self.workers

    @property
    def missed(self) -> int:
        """Requests that were late before they began."""
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
        """pcm: float32 [n] at 16 kHz, 30 s at most. prefix: confirmed words, forced.

        key: the utterance; a newer request of it replaces a queued partial, whose awaiter gets
        `SupersededError`. Raises CapacityError when 64 requests wait, InternalError when the model
        fails.
        """
        if len(pcm) > int(MAX_SECONDS * RATE):
            raise ValueError("one pass takes at most 30 s of audio")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Transcript] = loop.create_future()
        request = _Request(pcm, tuple(prefix), final, answer, loop)
        service_s = self.service.seconds(len(pcm) / RATE)
        job = Job(request, final, deadline_s, key, lambda error: _post(request, error), service_s)
        self._queue.put(job)
        try:
            return await answer
        finally:
            self._queue.cancel(job)

    def promote(self, key: Hashable) -> None:
        """Order a partial of `key` that still waits like a final."""
        self._queue.promote(key)

    def demote(self, key: Hashable) -> None:
        """Order a final of `key` that still waits like a partial."""
        self._queue.demote(key)

    def recognize(self, pcm: PcmF32, prefix: Sequence[str] = (), final: bool = False) -> Transcript:
        """One guarded pass on the calling thread; blocking. Not for use while calls are served."""
        began = self._clock.now()
        audio_s = len(pcm) / RATE
        if audio_s < MIN_SECONDS or (not prefix and is_quiet(pcm)):
            return Transcript(tuple(prefix), len(prefix), audio_s, 0.0, 1.0, final)
        decoded = self.model.decode(pcm, prefix)
        words = decoded.words
        tail = words[len(prefix) :]
        # A forced prefix has been through here before: only what is new is judged.
        if tail and is_suspicious(tail, decoded.no_speech_prob, decoded.avg_logprob):
            voiced_s = self._voiced_s(pcm)
            if is_made_up(decoded.no_speech_prob, decoded.avg_logprob, voiced_s):
                words = words[: len(prefix)]
        if is_loop(words) or not any(ch.isalnum() for ch in "".join(words)):
            words = ()
        spent = self._clock.now() - began
        return Transcript(
            words, min(len(prefix), len(words)), audio_s, spent, decoded.no_speech_prob, final,
            decoded.avg_logprob,
        )  # fmt: skip

    def warm(self) -> None:
        """Blocking: the shortest and the longer windows, with and without a prefix."""
        tone = (0.1 * np.sin(np.arange(RATE) * (2 * np.pi * 220 / RATE))).astype(np.float32)
        for seconds in (1, 12, 20):
            self.model.decode(np.tile(tone, seconds))
        self.model.decode(tone, ("hello", "there"))
        self._vad.probabilities(tone)

    def learn(self, pcm: PcmF32) -> None:
        """Blocking: what a pass takes here, by one over this speech, before the first caller's.

        pcm: float32 [n] at 16 kHz.
        """
        began = self._clock.now()
        self.recognize(pcm)
        with self._counting:
            self.service.note(self._clock.now() - began, len(pcm) / RATE)

    def close(self) -> None:
        """Drop what waits, finish what runs, stop the threads. Idempotent."""
        self._queue.close()
        for thread in self._threads:
            thread.join()

    def _voiced_s(self, pcm: PcmF32) -> float:
        return float((self._vad.probabilities(pcm) >= VOICED).sum()) * WINDOW / RATE

    def _work(self) -> None:
        while (job := self._queue.take()) is not None:
            request = job.payload
            began = self._clock.now()
            try:
                outcome: Transcript | BaseException = self.recognize(
                    request.pcm, request.prefix, request.final
                )
            except Exception as error:
                log.exception("recognition failed")
                outcome = InternalError(f"recognition failed: {error}")
            took_s = self._clock.now() - began
            with self._counting:
                self.passes += 1
                self.busy_s += took_s
                self.service.note(took_s, len(request.pcm) / RATE)
            _post(request, outcome)


def _post(request: _Request, outcome: Transcript | BaseException) -> None:
    """Hand the outcome to the awaiter, from any thread; nobody may be waiting any more."""

    def settle() -> None:
        if request.answer.done():
            return
        if isinstance(outcome, BaseException):
            request.answer.set_exception(outcome)
        else:
            request.answer.set_result(outcome)

    try:
        request.loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop is closed: the call is gone
        log.debug("a transcript arrived after its event loop closed")
