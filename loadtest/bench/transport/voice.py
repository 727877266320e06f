"""The recording that both sides speak."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gateway.media.opus import Encoder
from gateway.media.resample import Resampler
from voice_agent.audio import read_wav
from voice_agent.types import IN_RATE, OUT_FRAME, OUT_RATE, Pcm16

SECONDS = 10


def speech_24k(clips: Path) -> Pcm16:
    """int16, 24 kHz, SECONDS of the folder's recordings one after the other."""
    pcm = np.concatenate([read_wav(path, IN_RATE).pcm for path in sorted(clips.glob("*.wav"))])
    n = SECONDS * IN_RATE
    return Resampler(IN_RATE, OUT_RATE).push(np.tile(pcm, n // len(pcm) + 1)[:n])


def opus_packets(speech: Pcm16) -> list[bytes]:
    encoder = Encoder()
    return [encoder.encode(speech[i : i + OUT_FRAME]) for i in range(0, len(speech), OUT_FRAME)]
