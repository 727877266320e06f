"""Calls kept on disk: two aligned channels as WAV, and a tape that replays the decisions.

Off unless `recording.folder` is set, which needs `privacy.content`. Files are written on a thread
of their own; a call whose sound it cannot keep up with loses its recording, never its sound.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soxr
from numpy.typing import NDArray

from .agent import Call
from .config import RecordingConfig
from .errors import UsageError
from .events import EndReason, Event
from .playout import Tick
from .replay.record import TapedCall
from .replay.tape import SUFFIX, save
from .stack import AgentRuntime, Stack
from .types import IN_RATE, OUT_RATE, Frame, Pcm16

log = logging.getLogger(__name__)

TAPE_S = 600.0  # of a call that are kept for a replay
DAY_S = 86_400.0
CHUNK_S = 1.0
MAX_WAITING = 32  # chunks of all calls that the disk may owe
DRIFT = OUT_RATE // 10  # a channel this far behind the clock had a gap
NAMES = re.compile(r"\d{8}T\d{6}-[\w-]+\.(wav|call)")


class TwoChannels:
    """The caller left, ours right, both at 24 kHz from the call's first moment. Pure.

    A channel goes on where it stopped; one that fell behind the clock by over 100 ms (nothing was
    sent) is filled with silence, so that both stay within that of what was said when.
    """

    def __init__(self) -> None:
        self._parts: tuple[list[Pcm16], list[Pcm16]] = ([], [])
        self._ends = [0, 0]  # samples of each channel, those taken included
        self._taken = 0
        self._resampler = soxr.ResampleStream(IN_RATE, OUT_RATE, 1, dtype="int16")

    def caller(self, pcm: Pcm16, at_s: float) -> None:
        """int16 [n] at 16 kHz that ended at `at_s` of the call."""
        begin_s = at_s - len(pcm) / IN_RATE
        self._put(0, self._resampler.resample_chunk(pcm), begin_s)

    def agent(self, pcm: Pcm16, at_s: float) -> None:
        """int16 [n] at 24 kHz."""
        self._put(1, pcm, at_s - len(pcm) / OUT_RATE)

    def _put(self, side: int, pcm: Pcm16, begin_s: float) -> None:
        gap = round(begin_s * OUT_RATE) - self._ends[side]
        if gap > (DRIFT if self._ends[side] else 0):
            self._append(side, np.zeros(gap, np.int16))
        self._append(side, pcm)

    def _append(self, side: int, pcm: Pcm16) -> None:
        self._parts[side].append(pcm)
        self._ends[side] += len(pcm)

    def take(self, at_s: float, *, all_of_it: bool = False) -> NDArray[np.int16]:
        """What can be written now: int16 [n, 2]. A channel more than a second behind `at_s` has no
        sound there; all_of_it: nothing follows."""
        behind = round((at_s - CHUNK_S) * OUT_RATE)
        for side in (0, 1):
            end = max(self._ends) if all_of_it else behind
            if self._ends[side] < end:
                self._append(side, np.zeros(end - self._ends[side], np.int16))
        n = max(0, min(self._ends) - self._taken)
        out = np.zeros((n, 2), np.int16)
        for side in (0, 1):
            parts = self._parts[side]
            whole = np.concatenate(parts) if parts else np.zeros(0, np.int16)
            out[:, side] = whole[:n]
            parts[:] = [whole[n:]]
        self._taken += n
        return out


class Recorder:
    """Owns the folder, the writing thread and the age of what is in it."""

    def __init__(self, settings: RecordingConfig, *, wall: Callable[[], float] = time.time) -> None:
        """Raises UsageError VA435 for a folder that cannot be used."""
        assert settings.folder is not None
        self.folder = settings.folder
        self.replays = settings.replays
        self._keep_s = settings.keep_days * DAY_S
        self._wall = wall
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="recording")
        self._lock = threading.Lock()
        self.waiting = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.forget_old()
        except OSError as e:
            text = f"recording.folder {self.folder} cannot be used: {e}"
            raise UsageError(text, code="VA435") from e

    def make_call(
        self,
        stack: Stack,
        agent: AgentRuntime,
        on_event: Callable[[Event], None],
        *,
        lead_ms: int = 0,
    ) -> Call:
        """`Stack.make_call` of a server that records."""
        return RecordedCall(self, stack, agent, on_event, lead_ms=lead_ms)

    def path(self, call: str) -> Path:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._wall()))
        return self.folder / f"{stamp}-{call}.wav"

    def submit(self, work: Callable[[], None], *, must: bool = False) -> bool:
        """Run on the writing thread, in order. False, and nothing is done, when it owes too much
        already and this is not a must."""
        with self._lock:
            if self.waiting >= MAX_WAITING and not must:
                return False
            self.waiting += 1

        def run() -> None:
            try:
                work()
            except Exception:
                log.exception("a recording was not written")
            with self._lock:
                self.waiting -= 1

        self._worker.submit(run)
        return True

    def forget_old(self) -> None:
        """Delete recordings past their age. Other files are left alone."""
        oldest = self._wall() - self._keep_s
        for path in self.folder.iterdir():
            if NAMES.fullmatch(path.name) and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Blocking: what is owed is written."""
        self._worker.shutdown(wait=True)


class RecordedCall(TapedCall):
    """A call on its way to the disk."""

    def __init__(
        self,
        recorder: Recorder,
        stack: Stack,
        agent: AgentRuntime,
        on_event: Callable[[Event], None],
        *,
        lead_ms: int = 0,
    ) -> None:
        tape_s = TAPE_S if recorder.replays else 0.0
        super().__init__(stack, agent, on_event, lead_ms=lead_ms, max_s=tape_s)
        self._recorder = recorder
        self._path = recorder.path(self.id)
        self._file = WavFile(self._path)
        self._sound: TwoChannels | None = TwoChannels()
        self._zero_s = self._written_s = stack.clock.now()
        self._lead_s = lead_ms / 1000.0

    def hear(self, frame: Frame) -> None:
        if self._sound is not None:
            self._sound.caller(frame.pcm, self._now_s())
        super().hear(frame)

    def tick(self) -> Tick:
        tick = super().tick()
        if self._sound is not None:
            self._sound.agent(tick.pcm, self._now_s() + self._lead_s)
            if self._clock.now() - self._written_s >= CHUNK_S:
                self._written_s = self._clock.now()
                self._write(self._sound.take(self._now_s()))
        return tick

    async def run(self) -> EndReason:
        try:
            return await super().run()
        finally:
            if self._sound is not None:
                self._write(self._sound.take(self._now_s(), all_of_it=True))
            self._sound = None
            self._recorder.submit(self._file.close, must=True)
            if self._recorder.replays:
                recorded = self.recorded()
                path = self._path.with_suffix(SUFFIX)
                self._recorder.submit(lambda: save(recorded, path), must=True)
            self._recorder.submit(self._recorder.forget_old, must=True)

    def _now_s(self) -> float:
        return self._clock.now() - self._zero_s

    def _write(self, chunk: NDArray[np.int16]) -> None:
        if not self._recorder.submit(lambda: self._file.write(chunk)):
            log.warning("the disk is too slow: a recording ends early", extra={"call": self.id})
            self._sound = None


class WavFile:
    """A stereo WAV that grows, readable by its owner only; made with its first samples."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: BinaryIO | None = None
        self._wav: wave.Wave_write | None = None

    def write(self, chunk: NDArray[np.int16]) -> None:
        """int16 [n, 2] at 24 kHz."""
        if self._wav is None:
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            self._handle = os.fdopen(handle, "w+b")
            self._wav = wave.open(self._handle, "wb")  # noqa: SIM115
            self._wav.setnchannels(2)
            self._wav.setsampwidth(2)
            self._wav.setframerate(OUT_RATE)
        self._wav.writeframesraw(chunk.astype("<i2").tobytes())

    def close(self) -> None:
        if self._wav is not None and self._handle is not None:
            self._wav.close()
            self._handle.close()
