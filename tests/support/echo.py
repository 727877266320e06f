"""A caller's side that sends our own voice back: a room, a loudspeaker that clips, a telephone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gateway.media import g711
from voice_agent.audio import resample
from voice_agent.types import IN_RATE, Pcm16

CLIP_AT = 1.5
"""Times the root mean square, of a voice whose peaks are at 4 to 6 times: a small loudspeaker at
full volume."""


def room_response(seed: int = 0) -> NDArray[np.float64]:
    """100 ms of a small room, its first sound 10 dB above the rest; unit energy."""
    rng = np.random.default_rng(seed)
    h = rng.standard_normal(IN_RATE // 10) * np.exp(-np.arange(IN_RATE // 10) / 300)
    h[0] = 3.0
    return np.asarray(h / np.sqrt(np.square(h).sum()))


def echo_of(
    ours: Pcm16, delay_ms: int, db: float, *, clipped: bool = False, seed: int = 0
) -> NDArray[np.float64]:
    """What comes back of 16 kHz [n]: float64 [n], `db` against what was sent, on a quiet line."""
    said = ours.astype(np.float64)
    if clipped:
        limit = CLIP_AT * np.sqrt(np.square(said).mean())
        said = np.clip(said, -limit, limit)
    n = 1 << (2 * len(said)).bit_length()
    back = np.fft.irfft(np.fft.rfft(said, n) * np.fft.rfft(room_response(seed), n))[: len(said)]
    sent = np.square(ours.astype(np.float64)).mean()
    back *= 10 ** (db / 20) * np.sqrt(sent / np.square(back).mean())
    late = np.concatenate([np.zeros(delay_ms * IN_RATE // 1000), back])[: len(said)]
    return np.asarray(late + np.random.default_rng(seed).normal(0, 8, len(said)))


def telephone(sound: NDArray[np.float64] | Pcm16) -> Pcm16:
    """The same through 8 kHz µ-law, 16 kHz again."""
    pcm = np.clip(sound, -32768, 32767).astype(np.int16)
    return resample(g711.decode_ulaw(g711.encode_ulaw(resample(pcm, IN_RATE, 8000))), 8000, IN_RATE)
