"""What a caller says: recordings, and the noise of a line or of a room."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

RATE = 24_000
FRAME = RATE // 50
FRAME_S = 0.02
Pcm = NDArray[np.int16]
_ROOM = 4
"""Largest sample of a quiet line: not digital silence."""


class ClipError(ValueError):
    """A recording that cannot be used; the text names the file and what is needed."""


@dataclass(frozen=True, slots=True)
class Clip:
    """pcm: int16 [n] at 24 kHz; first: the first voiced sample, last: the one after the last."""

    name: str
    pcm: Pcm
    last: int
    first: int = 0

    @property
    def seconds(self) -> float:
        return len(self.pcm) / RATE


def load_clip(path: Path) -> Clip:
    """A mono 16-bit WAV. Voiced: 10 ms frames within 20 dB of the loud level, lone clicks apart.

    Raises ClipError.
    """
    try:
        with wave.open(str(path)) as w:
            if (w.getnchannels(), w.getsampwidth()) != (1, 2):
                raise ClipError(f"{path}: a mono 16-bit WAV is needed")
            raw = np.frombuffer(w.readframes(w.getnframes()), np.int16)
            rate = w.getframerate()
    except (OSError, EOFError, wave.Error) as error:
        raise ClipError(f"{path} cannot be read as a WAV file: {error}") from error
    pcm = soxr.resample(raw, rate, RATE) if rate != RATE else raw
    n = RATE // 100
    frames = pcm[: len(pcm) // n * n].reshape(-1, n).astype(np.float64)
    if not len(frames):
        raise ClipError(f"{path} holds no sound")
    db = 20 * np.log10(np.sqrt((frames**2).mean(axis=1)) + 1e-9)
    voiced = set(np.flatnonzero(db > np.percentile(db, 95) - 20).tolist())
    known = sorted(i for i in voiced if i - 1 in voiced or i + 1 in voiced)
    if not known or np.percentile(db, 95) < 20.0:
        raise ClipError(f"{path} holds no speech: it is silent all through")
    return Clip(path.stem, pcm.astype(np.int16), (known[-1] + 1) * n, known[0] * n)


def load_clips(folder: Path, names: tuple[str, ...] = ()) -> list[Clip]:
    """Those of `names` that are in the folder; without any of them all its WAV files.

    Raises ClipError.
    """
    paths = [folder / f"{name}.wav" for name in names if (folder / f"{name}.wav").is_file()]
    paths = paths or sorted(folder.glob("*.wav"))
    if not paths:
        raise ClipError(f"no WAV files in {folder}: name a folder of mono 16-bit recordings")
    return [load_clip(path) for path in paths]


def room(rng: np.random.Generator, n: int = FRAME) -> Pcm:
    """int16 [n] of a quiet line."""
    return rng.integers(-_ROOM, _ROOM + 1, n).astype(np.int16)


def noise(rng: np.random.Generator, seconds: float) -> Pcm:
    """int16 [n]: a loud street, hissing softly, with a clatter of 60-250 ms about twice a second.

    Nobody speaks in it: whoever answers it was deceived.
    """
    n = int(seconds * RATE)
    white = rng.standard_normal(n)
    brown = np.cumsum(white)
    hum = brown - np.convolve(brown, np.ones(481) / 481, mode="same")
    sound = 250.0 * hum / max(1e-9, float(np.std(hum))) + 60.0 * white
    at = 0.0
    while (at := at + float(rng.exponential(0.5))) < seconds - 0.3:
        length = int(rng.uniform(0.06, 0.25) * RATE)
        fade = np.exp(-np.linspace(0.0, 5.0, length))
        start = int(at * RATE)
        burst = rng.standard_normal(length) * fade * rng.uniform(1500.0, 6000.0)
        sound[start : start + length] += burst[: n - start]
    clipped: Pcm = np.clip(sound, -32768, 32767).astype(np.int16)
    return clipped
