"""What one caller hears, and when: loud stretches, holes in a reply, and the sound itself.

Pure: times are given by whoever receives. Two kinds of line feed it. `play` is a client without a
buffer of its own, to which sound comes in pieces ahead of time (WebSocket, in process); `frame` is
a line that plays without pause (RTP), whose receiver has decided when each frame is heard.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .clip import RATE, Pcm

LOUD = 0.01 * 32768
"""-40 dBFS: quieter than this is not sound."""
BIN = RATE // 100
JOIN_S = 0.2
"""A pause up to this long is inside a stretch of speech."""
GAP_S = 0.04
"""A shorter hole is not called one."""


@dataclass(slots=True)
class Stretch:
    """Seconds of the receiver's clock."""

    start_s: float
    end_s: float


@dataclass(slots=True)
class Ear:
    """gaps: (when, how long) of sound that came too late in the middle of a reply, in seconds.
    foreign: pieces of a reply that this call was never told of."""

    stretches: list[Stretch] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    heard: list[tuple[float, Pcm]] = field(default_factory=list)
    foreign: int = 0
    pieces: int = 0
    labelled: bool = False
    _own: set[str] = field(default_factory=set)
    _reply: str | None = None
    _open: bool = False
    _end_s: float = 0.0

    def own(self, reply: str) -> None:
        """This call was told of a reply."""
        self._own.add(reply)

    def play(self, pcm: Pcm, now_s: float, reply: str) -> None:
        """A piece of a reply: heard after what is still being played. Pieces of one reply belong
        together: time without sound between them is a hole."""
        self.labelled = True
        self.pieces += 1
        self.foreign += reply not in self._own
        if self._open and reply == self._reply and now_s - self._end_s > GAP_S:
            self.gaps.append((self._end_s, now_s - self._end_s))
        self._reply, self._open = reply, True
        start = max(now_s, self._end_s)
        self._end_s = start + len(pcm) / RATE
        self._take(pcm, start)

    def frame(self, pcm: Pcm, at_s: float) -> None:
        """A frame of a line that never pauses, as it is heard."""
        self.pieces += 1
        self._end_s = at_s + len(pcm) / RATE
        self._take(pcm, at_s)

    def gap(self, at_s: float, seconds: float) -> None:
        """A line's receiver had nothing to play; only where there was sound a moment before."""
        if seconds > GAP_S and self.loud_within(at_s, JOIN_S):
            self.gaps.append((at_s, seconds))

    def cut(self, now_s: float) -> None:
        """The client throws away what it has not played yet; a hold that follows is no hole."""
        self._open = False
        if now_s >= self._end_s:
            return
        self._end_s = now_s
        while self.stretches and self.stretches[-1].start_s >= now_s:
            self.stretches.pop()
        if self.stretches:
            self.stretches[-1].end_s = min(self.stretches[-1].end_s, now_s)

    # ------------------------------------------------------------ what was heard

    def silent_for(self, now_s: float, seconds: float) -> bool:
        """Nothing loud was heard for so long."""
        return not self.stretches or now_s - self.stretches[-1].end_s >= seconds

    def loud_within(self, at_s: float, before_s: float) -> bool:
        """Something loud was heard in (at - before, at]."""
        return any(s.start_s <= at_s and s.end_s > at_s - before_s for s in self.stretches)

    def onset_after(self, at_s: float) -> float | None:
        """When the first speech began after this; None: not yet."""
        return next((s.start_s for s in self.stretches if s.start_s > at_s), None)

    def speaking_since(self, at_s: float) -> float | None:
        """The start of the stretch that was being heard then; None: it was quiet."""
        return next((s.start_s for s in self.stretches if s.start_s <= at_s < s.end_s), None)

    def stopped_after(self, at_s: float, quiet_s: float) -> float:
        """The end of the last loud sound of what was being heard at `at_s`: pauses shorter than
        `quiet_s` are inside it."""
        end = at_s
        for s in self.stretches:
            if s.end_s > at_s and s.start_s - end < quiet_s:
                end = max(end, s.end_s)
        return end

    def between(self, start_s: float, end_s: float) -> Pcm:
        """int16 [n]: the pieces that began to be heard in [start, end), without pauses."""
        parts = [pcm for at, pcm in self.heard if start_s <= at < end_s]
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)

    def _take(self, pcm: Pcm, start_s: float) -> None:
        self.heard.append((start_s, pcm))
        n = -(-len(pcm) // BIN) * BIN
        padded = np.zeros(n, np.int32)
        padded[: len(pcm)] = np.abs(pcm.astype(np.int32))
        for i in np.flatnonzero(padded.reshape(-1, BIN).max(axis=1) > LOUD):
            first = int(np.flatnonzero(padded[i * BIN : (i + 1) * BIN] > LOUD)[0])
            at = start_s + (int(i) * BIN + first) / RATE
            end = start_s + (int(i) + 1) * BIN / RATE
            if self.stretches and at - self.stretches[-1].end_s <= JOIN_S:
                self.stretches[-1].end_s = end
            else:
                self.stretches.append(Stretch(at, end))
