"""Who makes sound: Silero's voice probability for every 32 ms window, many calls in one batch.

The model (Silero VAD v6, ONNX) takes 512 new samples after 64 samples of context and carries a
recurrent state of [2, 128] floats per stream. Streams never share state.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from .audio import to_float
from .clock import Clock
from .errors import CapacityError, InternalError
from .silero import CONTEXT, WINDOW, SileroVad, State
from .types import IN_RATE, Frame, FrameFlag, PcmF32

__all__ = [
    "CONTEXT",
    "WINDOW",
    "SileroVad",
    "State",
    "VadService",
    "VadStream",
    "VadWindow",
    "Windower",
]

log = logging.getLogger(__name__)

WINDOW_MS = WINDOW * 1000 // IN_RATE
BATCH_WAIT_S = 0.002  # for more windows; with the event loop's own lateness under 8 ms
BATCH_FROM = 8  # open streams below which windows run at once
MAX_STREAMS = 1024
MAX_BATCH = 256  # windows of one pass


@dataclass(frozen=True, slots=True)
class VadWindow:
    """Probability of speech in samples [start_sample, end_sample) of a stream.

    concealed: mostly made-up samples, so `prob` is 0 and says nothing about the caller. power: mean
    square of its samples, full scale being 1.
    """

    prob: float
    start_sample: int
    end_sample: int
    concealed: bool = False
    power: float = 0.0


class Windower:
    """Cuts a stream of frames into windows of 512 samples, whatever the chunking. Pure."""

    def __init__(self) -> None:
        self._row = np.zeros(CONTEXT + WINDOW, np.int16)  # what came before, and the window
        self._n = 0  # samples of the window so far
        self._made_up = 0  # of those, concealed
        self._start = 0

    def rows(self, frame: Frame) -> list[tuple[int, PcmF32, bool]]:
        """Completed windows: (start_sample, float32 [576] with the 64 samples before, mostly
        concealed)."""
        out: list[tuple[int, PcmF32, bool]] = []
        pcm, at, concealed = frame.pcm, 0, frame.flag is FrameFlag.CONCEALED
        while at < len(pcm):
            n = min(WINDOW - self._n, len(pcm) - at)
            place = CONTEXT + self._n
            self._row[place : place + n] = pcm[at : at + n]
            at, self._n = at + n, self._n + n
            self._made_up += n if concealed else 0
            if self._n == WINDOW:
                out.append((self._start, to_float(self._row), 2 * self._made_up >= WINDOW))
                self._row[:CONTEXT] = self._row[-CONTEXT:]
                self._start += WINDOW
                self._n = self._made_up = 0
        return out

    def push(self, frame: Frame) -> list[tuple[int, PcmF32, bool]]:
        """The same without what came before: (start_sample, float32 [512], mostly concealed)."""
        return [(start, row[CONTEXT:], made_up) for start, row, made_up in self.rows(frame)]


class _Job:
    __slots__ = ("done", "row", "stream")

    def __init__(self, stream: VadStream, row: PcmF32, done: asyncio.Future[float]) -> None:
        self.stream = stream
        self.row = row
        self.done = done


class VadService:
    """Owns the model and the batch being collected. All methods run on the event-loop thread.

    Below `BATCH_FROM` open streams a window is scored as it completes (0.1-0.3 ms). From there on
    windows wait up to 2 ms for each other and run as one call on a thread of its own. The batch
    holds at most one window per stream, so it is bounded by the number of streams.
    """

    def __init__(self, clock: Clock, model: SileroVad | None = None) -> None:
        self._clock = clock
        self._model = model or SileroVad()
        self._streams: set[VadStream] = set()
        self._batch: list[_Job] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="vad")
        self._timer: asyncio.TimerHandle | None = None
        self.windows = 0
        self.calls = 0
        self.busy_s = 0.0

    @property
    def n_open(self) -> int:
        return len(self._streams)

    def open(self) -> VadStream:
        """A fresh stream with a state of its own. Raises CapacityError at 1024 open streams."""
        if len(self._streams) >= MAX_STREAMS:
            raise CapacityError("too many voice activity streams are open")
        stream = VadStream(self)
        self._streams.add(stream)
        return stream

    def warm(self) -> None:
        """Blocking: run the batch shapes once."""
        for n in (1, 4, 16, 64):
            self._model.score(
                np.zeros((n, CONTEXT + WINDOW), np.float32), np.zeros((2, n, 128), np.float32)
            )

    def close(self) -> None:
        """Close every stream; windows still waiting are dropped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for job in self._batch:
            job.done.cancel()
        self._batch.clear()
        self._streams.clear()
        self._worker.shutdown(wait=False)

    def _closed(self, stream: VadStream) -> None:
        self._streams.discard(stream)

    async def _score(self, stream: VadStream, row: PcmF32) -> float:
        if len(self._streams) < BATCH_FROM:
            return self._run_one(stream, row)
        loop = asyncio.get_running_loop()
        job = _Job(stream, row, loop.create_future())
        self._batch.append(job)
        if self._timer is None:
            self._timer = loop.call_later(BATCH_WAIT_S, self._flush)
        return await job.done

    def _flush(self) -> None:
        self._timer = None
        jobs, self._batch = self._batch, []
        for at in range(0, len(jobs), MAX_BATCH):
            self._launch(jobs[at : at + MAX_BATCH])

    def _launch(self, jobs: list[_Job]) -> None:
        began = self._clock.now()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._worker, self._run, jobs)

        def reap(finished: asyncio.Future[list[float]]) -> None:
            self._account(len(jobs), began)
            error = None if finished.cancelled() else finished.exception()
            if finished.cancelled() or error is not None:
                for job in jobs:
                    if not job.done.cancelled():
                        job.done.set_exception(InternalError(f"voice activity failed: {error}"))
                return
            for job, prob in zip(jobs, finished.result(), strict=True):
                if not job.done.cancelled():
                    job.done.set_result(prob)

        running.add_done_callback(reap)

    def _run(self, jobs: list[_Job]) -> list[float]:
        """On the worker: a stream has one window at most under way, so nobody else has its
        state."""
        rows = np.stack([job.row for job in jobs])
        states = np.concatenate([job.stream.state for job in jobs], axis=1)
        probs, after = self._model.score(rows, states)
        for i, job in enumerate(jobs):
            job.stream.state = after[:, i : i + 1]
        told: list[float] = probs.tolist()
        return told

    def _run_one(self, stream: VadStream, row: PcmF32) -> float:
        began = self._clock.now()
        probs, stream.state = self._model.score(row[None], stream.state)
        self._account(1, began)
        return float(probs[0])

    def _account(self, n: int, began: float) -> None:
        self.windows += n
        self.calls += 1
        self.busy_s += self._clock.now() - began


class VadStream:
    """One call's ear. `push` frames in order, from one task at a time."""

    def __init__(self, service: VadService) -> None:
        self._service = service
        self._windower = Windower()
        self._pushing = False
        self.state: State = np.zeros((2, 1, 128), np.float32)
        self.closed = False

    async def push(self, frame: Frame) -> list[VadWindow]:
        """The windows this frame completes, oldest first. A closed stream answers nothing.

        A mostly concealed window is not scored: the state is carried over it. Raises InternalError
        when the model fails, RuntimeError when two tasks push at once.
        """
        if self._pushing:
            raise RuntimeError("frames of one stream must be pushed in order, one at a time")
        if self.closed:
            return []
        self._pushing = True
        try:
            out: list[VadWindow] = []
            for start, row, concealed in self._windower.rows(frame):
                prob = 0.0 if concealed else await self._service._score(self, row)
                new = row[CONTEXT:]
                power = float(np.dot(new, new)) / WINDOW
                out.append(VadWindow(prob, start, start + WINDOW, concealed, power))
            return out
        finally:
            self._pushing = False

    def close(self) -> None:
        """Idempotent."""
        self.closed = True
        self._service._closed(self)
