"""Log-mel spectrogram as Whisper defines it (Radford et al. 2022), in numpy, for every model that
eats it."""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .types import PcmF32

Mel: TypeAlias = NDArray[np.float32]
"""Log-mel features, float32, shape [n_mels, n_frames]."""

RATE = 16_000
N_FFT = 400
HOP = 160
FRAMES_PER_S = RATE // HOP
FLOOR_LOG10 = -10.0  # log10 of the smallest mel power
DYNAMIC_RANGE = 8.0  # decades kept below the loudest bin


def _hz_to_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slaney's scale: linear below 1 kHz, logarithmic above."""
    linear = hz * 3.0 / 200.0
    log = 15.0 + 27.0 * np.log(np.maximum(hz, 1e-9) / 1000.0) / np.log(6.4)
    return np.where(hz < 1000.0, linear, log)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(
        mel < 15.0, mel * 200.0 / 3.0, 1000.0 * np.exp((mel - 15.0) * np.log(6.4) / 27.0)
    )


@functools.cache
def mel_filters(n_mels: int) -> NDArray[np.float32]:
    """Triangular filters of unit area, float32 [N_FFT // 2 + 1, n_mels], 0 Hz to 8 kHz."""
    top = _hz_to_mel(np.array([RATE / 2.0]))[0]
    edges = _mel_to_hz(np.linspace(0.0, top, n_mels + 2))
    bins = np.fft.rfftfreq(N_FFT, 1.0 / RATE)[:, None]
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    rising = (bins - lower) / (centre - lower)
    falling = (upper - bins) / (upper - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (upper - lower))
    return np.ascontiguousarray(triangles, np.float32)


@functools.cache
def _window() -> NDArray[np.float32]:
    return np.hanning(N_FFT + 1)[:-1].astype(np.float32)


def log10_mel(pcm: PcmF32, n_mels: int = 80) -> NDArray[np.float32]:
    """Raw log10 mel power of every hop of `pcm`, float32 [n_frames, n_mels]; n_frames = n // HOP.

    Frames are centred (reflected at the start, zeros after the end), so frame i sees samples
    i*HOP - 200 to i*HOP + 200. Power is floored at 1e-10.
    """
    n_frames = len(pcm) // HOP
    if n_frames == 0:
        return np.zeros((0, n_mels), np.float32)
    half = N_FFT // 2
    padded = np.zeros(len(pcm) + N_FFT, np.float32)
    padded[half : half + len(pcm)] = pcm
    head = pcm[1 : half + 1][::-1]
    padded[half - len(head) : half] = head
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[: n_frames * HOP : HOP]
    spectrum = np.fft.rfft(frames * _window(), axis=1)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    mel = power @ mel_filters(n_mels)
    out: NDArray[np.float32] = np.log10(np.maximum(mel, np.float32(1e-10)))
    return out


def whisper_features(pcm: PcmF32, n_frames: int, n_mels: int = 80) -> Mel:
    """Features of `pcm` followed by digital silence up to `n_frames`, float32 [n_mels, n_frames].

    Only the frames that see sound are computed; the rest is the floor, as an FFT of zeros gives.
    """
    # frame i sees samples from i * HOP - N_FFT / 2 on
    reach = min(n_frames, (len(pcm) + N_FFT // 2 + HOP - 1) // HOP)
    body = log10_mel(np.pad(pcm[: n_frames * HOP], (0, 3 * HOP)), n_mels)[:reach]
    out = np.full((n_frames, n_mels), FLOOR_LOG10, np.float32)
    out[: len(body)] = body
    loudest = float(body.max()) if len(body) else FLOOR_LOG10
    np.maximum(out, loudest - DYNAMIC_RANGE, out=out)
    out += 4.0
    out *= 0.25
    return np.ascontiguousarray(out.T)
