"""PCM that a telephone stack hands over as packets arrive, as one 16 kHz frame per 20 ms.

The stack has put packets in order and says nothing about the missing ones. One frame is kept back:
it covers the tick in which nothing comes, and when the next packet is there and the reserve is not,
one was lost rather than late, and is concealed in its place. Any packet time will do: what comes
at once for several ticks is its own reserve.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from voice_agent.types import IN_FRAME, IN_RATE, SILENT_IN, Frame, FrameFlag, Pcm16

from .conceal import Concealer

RESERVE = IN_FRAME
MAX_HELD = IN_RATE // 5  # 200 ms; what is older is dropped and counted
CONCEAL_TICKS = 3
SURPLUS_TICKS = 25
QUIET = 200  # mean level, of int16, below which a frame may be left out unheard


@dataclass(slots=True)
class SteadyStats:
    """Frames of 20 ms."""

    concealed: int = 0
    skipped: int = 0
    overflow: int = 0


class Steady:
    """One caller's sound between the stack and the call: `push` what came, then take a `frame`."""

    def __init__(self) -> None:
        self.stats = SteadyStats()
        self._held: Pcm16 = np.zeros(0, np.int16)
        self._fresh = False
        self._concealer = Concealer()
        self._lost_ticks = CONCEAL_TICKS  # nothing has come yet: silence
        self._surplus: deque[int] = deque(maxlen=SURPLUS_TICKS)

    @property
    def held_ms(self) -> float:
        return len(self._held) * 1000.0 / IN_RATE

    def push(self, pcm: Pcm16) -> None:
        """pcm: int16 [n] at 16 kHz, since the last push."""
        self._fresh = self._fresh or len(pcm) > 0
        self._held = np.concatenate([self._held, pcm])
        if (over := len(self._held) - MAX_HELD) > 0:
            n = -(-over // IN_FRAME)
            self.stats.overflow += n
            self._held = self._held[n * IN_FRAME :]

    def frame(self) -> Frame:
        """The next 20 ms; to be called after the tick's `push`."""
        fresh, self._fresh = self._fresh, False
        # what came although less than the reserve is held follows a hole, which is filled first
        if len(self._held) < (IN_FRAME + RESERVE if fresh else IN_FRAME):
            return self._missing()
        self._lost_ticks = 0
        if self._too_full():
            self.stats.skipped += 1
            self._take()
        return Frame(self._concealer.good(self._take()))

    def _take(self) -> Pcm16:
        pcm, self._held = self._held[:IN_FRAME], self._held[IN_FRAME:]
        return pcm

    def _missing(self) -> Frame:
        self._surplus.clear()
        self._lost_ticks += 1
        if self._lost_ticks > CONCEAL_TICKS:
            return Frame(SILENT_IN, FrameFlag.SILENCE)
        self.stats.concealed += 1
        return Frame(self._concealer.lost(), FrameFlag.CONCEALED)

    def _too_full(self) -> bool:
        """More than one frame beyond the reserve for half a second: the sender's clock runs fast,
        or late packets left a delay. A quiet frame goes, or any once it is twice that."""
        self._surplus.append(len(self._held) - IN_FRAME - RESERVE)
        if len(self._surplus) < SURPLUS_TICKS or min(self._surplus) < IN_FRAME:
            return False
        level = float(np.abs(self._held[:IN_FRAME].astype(np.float32)).mean())
        if level >= QUIET and min(self._surplus) < 3 * IN_FRAME:
            return False
        self._surplus.clear()
        return True
