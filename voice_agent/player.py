"""The sound of one reply on its way out: queue, position, fades, hold and flush. Pure.

It knows samples and nothing of words, so that it can run where the packets leave: in this process,
or in a media worker beside the sockets (gateway/workers). `Playout` owns one, or stands for one
that is elsewhere, and keeps what the samples mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .types import OUT_FRAME, OUT_RATE, SILENT_OUT, Pcm16, PcmF32

FADE_SAMPLES = OUT_RATE * 5 // 1000
NO_REPLY = -1


@dataclass(frozen=True, slots=True)
class Played:
    """One tick. pcm: int16 [480], 24 kHz. reply: its number in the call, NO_REPLY if there is none.

    samples: how many of the reply were in it, offset: the first one's. finished: all of the reply
    has left, in this tick or before. underrun: more was expected.
    """

    pcm: Pcm16
    reply: int = NO_REPLY
    offset: int = 0
    samples: int = 0
    finished: bool = False
    underrun: bool = False


class Sounding(Protocol):
    """A `Player`, here or elsewhere. Whatever names a reply other than the one begun last is
    ignored; positions are samples at 24 kHz counted from the reply's first."""

    def begin(self, reply: int) -> None:
        """Start a reply: at full gain, not held, whatever was before is forgotten."""
        ...

    def play(self, reply: int, offset: int, pcm: Pcm16) -> None:
        """The next samples, `offset` the first one's place; what doesn't follow on is dropped.
        pcm must not be changed afterwards."""
        ...

    def end(self, reply: int, total: int) -> None:
        """The reply has `total` samples."""
        ...

    def hold(self) -> None:
        """Silent from the next frame, but for a 5 ms fade that does not move the position."""
        ...

    def resume(self) -> None:
        """Go on, at full gain."""
        ...

    def seek(self, reply: int, at: int) -> None:
        """Go on at `at`; what is queued is dropped and comes again by `play`."""
        ...

    def duck(self, gain: float) -> None:
        """Play at `gain` until `resume`."""
        ...

    def flush(self, reply: int) -> None:
        """Silent for good from the next frame."""
        ...

    def tick(self) -> Played:
        """20 ms; of a player elsewhere: what it reported."""
        ...


class Sound:
    """Consecutive samples, kept as the arrays they came in; dropped from the front."""

    __slots__ = ("_chunks", "base", "end")

    def __init__(self, base: int = 0) -> None:
        self._chunks: deque[Pcm16] = deque()
        self.base = base  # place of the first sample kept
        self.end = base

    def append(self, pcm: Pcm16) -> None:
        if len(pcm):
            self._chunks.append(pcm)
            self.end += len(pcm)

    def peek(self, at: int, n: int) -> Pcm16:
        """Up to n samples from `at` on (not before `base`)."""
        out: list[Pcm16] = []
        for part in self.parts(at):
            out.append(part[:n])
            n -= len(out[-1])
            if not n:
                break
        if not out:
            return SILENT_OUT[:0]
        return out[0] if len(out) == 1 else np.concatenate(out)

    def parts(self, at: int) -> Iterator[Pcm16]:
        """All from `at` on, as it lies in memory."""
        start = self.base
        for chunk in self._chunks:
            skip = max(0, at - start)
            start += len(chunk)
            if skip < len(chunk):
                yield chunk[skip:]

    def drop_before(self, at: int) -> None:
        """Whole arrays only; may be called with any place."""
        while self._chunks and self.base + len(self._chunks[0]) <= at:
            self.base += len(self._chunks.popleft())

    def clear(self) -> None:
        self._chunks.clear()
        self.base = self.end

    def __len__(self) -> int:
        return sum(map(len, self._chunks))


class Player:
    """Plays what it is given; see `Sounding`."""

    def __init__(self, on_cut: Callable[[], None] = lambda: None) -> None:
        """on_cut: told when a reply is flushed that was not over."""
        self._on_cut = on_cut
        self._reply = NO_REPLY
        self._sound = Sound()
        self._position = 0
        self._total: int | None = None
        self._started = False
        self._over = True
        self._held = False
        self._gain = 1.0
        self._target = 1.0

    def begin(self, reply: int) -> None:
        self._reply = reply
        self._sound = Sound()
        self._position = 0
        self._total = None
        self._started = self._over = self._held = False
        self._gain = self._target = 1.0

    def play(self, reply: int, offset: int, pcm: Pcm16) -> None:
        if reply == self._reply and offset == self._sound.end and not self._over:
            self._sound.append(pcm)

    def end(self, reply: int, total: int) -> None:
        if reply == self._reply:
            self._total = total

    def hold(self) -> None:
        self._held = True

    def resume(self) -> None:
        self._held = False
        self._target = 1.0

    def seek(self, reply: int, at: int) -> None:
        if reply == self._reply and not self._over:
            self._sound = Sound(at)
            self._position = at

    def duck(self, gain: float) -> None:
        self._target = gain

    def flush(self, reply: int) -> None:
        if reply == self._reply:
            cut = not self._over
            self._reply = NO_REPLY
            self._over = True
            self._sound.clear()
            if cut:
                self._on_cut()

    def tick(self) -> Played:
        if self._over:
            return Played(SILENT_OUT, self._reply, self._position, finished=self._reply >= 0)
        return self._held_tick() if self._held else self._playing_tick()

    def _held_tick(self) -> Played:
        pcm = SILENT_OUT
        if self._gain != 0.0 and self._started:
            tail = self._sound.peek(self._position, FADE_SAMPLES)
            pcm = np.zeros(OUT_FRAME, np.int16)
            pcm[: len(tail)] = _scaled(tail, _ramp(self._gain, 0.0, len(tail)))
            self._gain = 0.0
        return Played(pcm, self._reply, self._position)

    def _playing_tick(self) -> Played:
        offset, sound = self._position, self._sound.peek(self._position, OUT_FRAME)
        n = len(sound)
        self._position += n
        self._sound.drop_before(self._position)
        self._started = self._started or n > 0
        finished = self._total is not None and self._position >= self._total
        dry = n < OUT_FRAME and not finished
        underrun = dry and self._started
        if n:
            sound = self._shaped(sound)
            if dry:
                sound = _faded_out(sound)
        if underrun:
            self._gain = 0.0
        pcm = sound
        if n < OUT_FRAME:
            pcm = SILENT_OUT
            if n:
                pcm = np.zeros(OUT_FRAME, np.int16)
                pcm[:n] = sound
        self._over = finished
        return Played(pcm, self._reply, offset, n, finished, underrun)

    def _shaped(self, sound: Pcm16) -> Pcm16:
        """Gain of this frame: a 5 ms ramp from the present gain, then the target."""
        if self._gain == self._target == 1.0:
            return sound
        gains = np.full(len(sound), self._target, np.float32)
        n = min(FADE_SAMPLES, len(sound))
        gains[:n] = _ramp(self._gain, self._target, n)
        self._gain = self._target
        return _scaled(sound, gains)


def _ramp(start: float, stop: float, n: int) -> PcmF32:
    return np.linspace(start, stop, n, dtype=np.float32)


def _scaled(pcm: Pcm16, gains: PcmF32) -> Pcm16:
    out: Pcm16 = np.rint(pcm * gains).astype(np.int16)
    return out


def _faded_out(pcm: Pcm16) -> Pcm16:
    out = pcm.copy()
    n = min(FADE_SAMPLES, len(out))
    out[-n:] = _scaled(out[-n:], _ramp(1.0, 0.0, n))
    return out
