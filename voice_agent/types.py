"""The nouns every stage shares: who is speaking, what is answered, one frame of sound.

Sound inside the house has two shapes only:

* caller to server: mono 16 kHz int16 frames of 320 samples (20 ms of *media time* each);
* server to caller: mono 24 kHz int16 frames of 480 samples (20 ms).

Transports convert at the edge and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pcm16: TypeAlias = NDArray[np.int16]
"""Mono PCM, int16, shape [n]."""
PcmF32: TypeAlias = NDArray[np.float32]
"""Mono PCM, float32 in [-1, 1], shape [n]."""

FRAME_MS = 20
IN_RATE = 16_000
IN_FRAME = IN_RATE * FRAME_MS // 1000
OUT_RATE = 24_000
OUT_FRAME = OUT_RATE * FRAME_MS // 1000


@dataclass(frozen=True, slots=True, order=True)
class TurnId:
    """What the caller says. A caller who goes on before commit makes revision n+1 of one index."""

    call: str
    index: int
    revision: int = 0

    def revised(self) -> TurnId:
        return replace(self, revision=self.revision + 1)

    def next(self) -> TurnId:
        return TurnId(self.call, self.index + 1, 0)

    @property
    def first(self) -> TurnId:
        """The turn's first revision: what its message in the history is known by."""
        return replace(self, revision=0)

    def __str__(self) -> str:
        return f"{self.call}/t{self.index}.{self.revision}"


@dataclass(frozen=True, slots=True, order=True)
class ReplyId:
    """What we say: an answer, a greeting, a recovery. `turn` is the turn it answers, if any.

    aside: made for the client beside the conversation: it has no floor and is not remembered.
    """

    call: str
    n: int
    turn: TurnId | None = None
    aside: bool = False

    def __str__(self) -> str:
        return f"{self.call}/r{self.n}"


class FrameFlag(StrEnum):
    """Where a frame's samples come from. The VAD ignores concealed frames."""

    RECEIVED = "received"
    RECOVERED = "recovered"
    CONCEALED = "concealed"
    SILENCE = "silence"


@dataclass(frozen=True, slots=True)
class Frame:
    """20 ms of the caller. pcm: int16 [320] at 16 kHz."""

    pcm: Pcm16
    flag: FrameFlag = FrameFlag.RECEIVED


SILENT_IN = np.zeros(IN_FRAME, np.int16)
SILENT_OUT = np.zeros(OUT_FRAME, np.int16)
SILENT_IN.flags.writeable = False
SILENT_OUT.flags.writeable = False
