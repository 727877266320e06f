"""How far a voice has sunk at a pause: who is done lets it sink, who goes on keeps it up.

Gravano and Hirschberg, "Turn-taking cues in task-oriented dialogue", Computer Speech and Language
25 (2011), find the level among the cues that a turn is over.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from statistics import median

VOICE_DB = 25.0  # below the loudest window a window is a gap and not the voice
END = 6  # windows of voice that are its end: 192 ms
ENOUGH = 3 * END  # of voice before its end can be told from the rest
HEARD = 250  # windows, 8 s: what the end-of-turn model hears as well
QUIETEST = 1e-9


class VoiceLevel:
    """The levels of one speech, a window of 32 ms at a time."""

    def __init__(self) -> None:
        self._powers: deque[float] = deque(maxlen=HEARD)

    def hear(self, power: float) -> None:
        """power: mean square of the next window."""
        self._powers.append(power)

    def clear(self) -> None:
        """Other speech begins."""
        self._powers.clear()

    def fall_db(self, windows_since: int) -> float | None:
        """The level usual in this speech less that of its end, which was `windows_since` windows
        ago. None: there was too little voice to tell."""
        spoken = list(islice(self._powers, max(0, len(self._powers) - windows_since)))
        least = max(spoken, default=0.0) * 10 ** (-VOICE_DB / 10)
        voice = [power for power in spoken if power > least]
        if len(voice) < ENOUGH:
            return None
        return _db(median(voice)) - _db(sum(voice[-END:]) / END)


def _db(power: float) -> float:
    return 10.0 * math.log10(power + QUIETEST)
