"""How far a voice has sunk at a pause, and how near it sounds.

Who is done lets the voice sink, who goes on keeps it up.

Gravano and Hirschberg, "Turn-taking cues in task-oriented dialogue", Computer Speech and Language
25 (2011), find the level among the cues that a turn is over.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from statistics import median

import numpy as np

from .types import IN_RATE, Pcm16
from .vad import WINDOW

VOICE_DB = 25.0  # below the loudest window a window is a gap and not the voice
END = 6  # windows of voice that are its end: 192 ms
ENOUGH = 3 * END  # of voice before its end can be told from the rest
HEARD = 250  # windows, 8 s: what the end-of-turn model hears as well
QUIETEST = 1e-9
QUIET_DB = -26.0
"""Loudest window of a quiet caller, dBFS: speech at -26 dBFS, the usual level of a telephone (ITU-T
P.56), reaches -22."""
DULL_TILT_DB = -21.0
"""`tilt_db` of a dull caller: the middle of 140 recorded interruptions is -19, 98 of 100 lie at -25
and above. The same voices turned away, through a computed room: -31."""
TILT_VOICE_DB = 20.0
TILT_ENOUGH = 16  # windows of voice that can be dull, 0.5 s; fewer may be a few vowels
_LOW_HZ, _HIGH_HZ = (250.0, 1500.0), (2000.0, 3400.0)


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


def tilt_db(pcm: Pcm16) -> float | None:
    """How much weaker the voice in int16 [n] at 16 kHz is in 2 to 3.4 kHz than in 0.25 to 1.5, dB:
    who turns away or is across the room sounds dull. A telephone has both bands. None: there is too
    little voice to tell."""
    windows = pcm[: len(pcm) // WINDOW * WINDOW].astype(np.float32).reshape(-1, WINDOW)
    powers = np.square(windows).mean(axis=1)
    voice = windows[powers > powers.max(initial=0.0) * 10 ** (-TILT_VOICE_DB / 10)]
    if len(voice) < TILT_ENOUGH:
        return None
    spectrum = np.square(np.abs(np.fft.rfft(voice * np.hanning(WINDOW), axis=1))).sum(axis=0)
    hz = np.fft.rfftfreq(WINDOW, 1.0 / IN_RATE)
    low, high = (
        float(spectrum[(hz >= a) & (hz < b)].sum()) + QUIETEST for a, b in (_LOW_HZ, _HIGH_HZ)
    )
    return 10.0 * math.log10(high / low)
