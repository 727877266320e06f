"""What callers say and what surrounds them: recordings with their voiced stretches labelled."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voice_agent.audio import read_wav, to_float
from voice_agent.languages.en.backchannel import is_backchannel
from voice_agent.types import IN_RATE, Pcm16, PcmF32
from voice_agent.vad import WINDOW, SileroVad

from . import prompts
from .kept import Kept

LEVEL_DB = -26.0  # active speech level of every caller (ITU-T P.56's usual test level)
STEP = IN_RATE // 100  # 10 ms
FLOOR_DB = 30.0  # below the loudest step a sound is silent
MIN_PAUSE_MS = 160
PEAK = 0.95


@dataclass(frozen=True, slots=True)
class Sound:
    """pcm: int16 [n] at 16 kHz at `LEVEL_DB`. voiced: [start, end) samples of its stretches of
    speech, apart by at least `MIN_PAUSE_MS`. human: recorded from a person. half: 0 or 1, by name.
    """

    name: str
    pcm: Pcm16
    human: bool
    half: int
    text: str
    voiced: tuple[tuple[int, int], ...]

    @property
    def onset(self) -> int:
        """First voiced sample."""
        return self.voiced[0][0]

    @property
    def end(self) -> int:
        """One past the last voiced sample."""
        return self.voiced[-1][1]

    @property
    def speech_s(self) -> float:
        """From the first voiced sample to the last."""
        return (self.end - self.onset) / IN_RATE


@dataclass(frozen=True, slots=True)
class Library:
    """turns: whole utterances. starts: beginnings that go on, each with what follows it.
    backchannels, coughs and clatter: sounds that take no turn. Each sound says if it is human."""

    turns: tuple[Sound, ...]
    starts: tuple[tuple[Sound, tuple[Sound, ...]], ...] = ()
    backchannels: tuple[Sound, ...] = ()
    coughs: tuple[Sound, ...] = ()
    clatter: tuple[Sound, ...] = ()


def half_of(name: str) -> int:
    """The half of the files that a name belongs to."""
    return hashlib.sha256(name.encode()).digest()[0] & 1


def ranked(sounds: Sequence[Sound], salt: str) -> list[Sound]:
    """In an order that depends on nothing but names."""
    return sorted(sounds, key=lambda s: hashlib.sha256(f"{salt}/{s.name}".encode()).digest())


class Labeller:
    """Finds where somebody speaks in a clean recording, by the detector and by loudness."""

    def __init__(self, vad: SileroVad, kept: Kept | None = None) -> None:
        self._vad = vad
        self._kept = kept or Kept()

    def sound(self, name: str, pcm: Pcm16, *, human: bool, text: str = "") -> Sound | None:
        """Brought to `LEVEL_DB` and labelled; None if nobody speaks in it."""
        key = Kept.key("labels", "", pcm)
        known = self._kept.get(key)
        if known is None:
            known = self._voiced(to_float(pcm))
            self._kept.put(key, known)
        voiced = tuple((int(a), int(b)) for a, b in known)
        if not voiced:
            return None
        level = _level_db(pcm, voiced)
        gain = 10 ** ((LEVEL_DB - level) / 20)
        gain = min(gain, PEAK * 32768 / max(1.0, float(np.abs(pcm.astype(np.float32)).max())))
        scaled: Pcm16 = np.rint(pcm * gain).astype(np.int16)
        return Sound(name, scaled, human, half_of(name), text, voiced)

    def _voiced(self, pcm: PcmF32) -> tuple[tuple[int, int], ...]:
        """Loud steps inside what the detector calls voice, joined over short gaps."""
        tail = np.zeros(WINDOW, np.float32)
        probs = self._vad.probabilities(np.concatenate([pcm, tail]))
        speech = np.repeat(probs >= 0.35, WINDOW)[: len(pcm)]
        n = len(pcm) // STEP
        power = np.square(pcm[: n * STEP].reshape(n, STEP)).mean(axis=1)
        loud = power > power.max(initial=0.0) * 10 ** (-FLOOR_DB / 10)
        near = speech[: n * STEP].reshape(n, STEP).any(axis=1)
        return _runs(loud & near & (power > 1e-8))


def _runs(on: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """[start, end) samples of the true stretches of 10 ms steps, joined over short gaps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], on.astype(np.int8), [0]])))
    out: list[tuple[int, int]] = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if out and (start - out[-1][1]) * 10 < MIN_PAUSE_MS:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    long_enough = [(a * STEP, b * STEP) for a, b in out if b - a >= 4]
    return tuple(long_enough)


def _level_db(pcm: Pcm16, voiced: Sequence[tuple[int, int]]) -> float:
    active = np.concatenate([to_float(pcm[a:b]) for a, b in voiced])
    return float(10 * np.log10(np.square(active).mean() + 1e-12))


def join(name: str, parts: Sequence[Sound], gap_ms: Sequence[int]) -> Sound:
    """One after the other, from voiced sample to voiced sample, with silences between."""
    out: list[Pcm16] = []
    voiced: list[tuple[int, int]] = []
    at = 0
    for i, part in enumerate(parts):
        body = part.pcm[part.onset : part.end]
        voiced += [(at + a - part.onset, at + b - part.onset) for a, b in part.voiced]
        out.append(body)
        at += len(body)
        if i < len(parts) - 1:
            n = gap_ms[i] * IN_RATE // 1000
            out.append(np.zeros(n, np.int16))
            at += n
    human = all(p.human for p in parts)
    text = " ".join(p.text for p in parts)
    return Sound(name, np.concatenate(out), human, parts[0].half, text, tuple(voiced))


def split(sound: Sound, gap_ms: int) -> Sound | None:
    """The same words with a pause of `gap_ms` at the quietest place of their middle third; None
    where the voice has no quiet place there."""
    first = sound.onset + (sound.end - sound.onset) // 3
    last = sound.end - (sound.end - sound.onset) // 3
    n = (last - first) // STEP
    if n < 8:
        return None
    part = to_float(sound.pcm[first : first + n * STEP]).reshape(n, STEP)
    power = np.convolve(np.square(part).mean(axis=1), np.full(5, 0.2), mode="valid")
    if 10 * np.log10(power.min() + 1e-12) > LEVEL_DB - 12:
        return None
    at = first + (int(power.argmin()) + 2) * STEP
    if any(b <= at < b + MIN_PAUSE_MS * IN_RATE // 1000 for _, b in sound.voiced[:-1]):
        return None  # it has a pause of its own there
    gap = gap_ms * IN_RATE // 1000
    pcm = sound.pcm.copy()
    ramp = np.linspace(1.0, 0.0, STEP, dtype=np.float32)
    before, after = pcm[:at].astype(np.float32), pcm[at:].astype(np.float32)
    before[-STEP:] *= ramp
    after[:STEP] *= ramp[::-1]
    whole = np.concatenate([before, np.zeros(gap, np.float32), after])
    voiced: list[tuple[int, int]] = []
    for a, b in sound.voiced:
        if a < at:
            voiced.append((a, min(b, at)))
        if b > at:
            voiced.append((max(a, at) + gap, b + gap))
    return replace(sound, pcm=np.rint(whole).astype(np.int16), voiced=tuple(voiced))


def read_folder(folder: Path, labeller: Labeller) -> list[Sound]:
    """Every WAV of a folder of recordings; words from its transcripts.tsv where it has one."""
    words: dict[str, str] = {}
    table = folder / "transcripts.tsv"
    if table.is_file():
        with table.open(encoding="utf-8") as rows:
            for row in csv.DictReader(rows, delimiter="\t"):
                words[row["file"]] = row.get("transcript") or ""
    found = [
        labeller.sound(
            path.name, read_wav(path, IN_RATE).pcm, human=True, text=words.get(path.name, "")
        )
        for path in sorted(folder.glob("*.wav"))
    ]
    return [sound for sound in found if sound is not None]


def read_prompts(labeller: Labeller) -> tuple[list[Sound], list[tuple[Sound, tuple[Sound, ...]]]]:
    """Whole prompts, and beginnings with what follows them; nothing where there are none."""
    folder = prompts.folder()
    if folder is None:
        return [], []

    def load(name: str) -> Sound | None:
        path = folder / f"{name}.g722"
        if not path.is_file():
            return None
        return labeller.sound(path.name, prompts.read(path), human=True)

    whole = [s for s in map(load, sorted(prompts.WHOLE)) if s is not None]
    starts: list[tuple[Sound, tuple[Sound, ...]]] = []
    for name, following in sorted(prompts.UNFINISHED.items()):
        first, rest = load(name), [load(n) for n in following]
        if first is not None and all(r is not None for r in rest):
            starts.append((first, tuple(r for r in rest if r is not None)))
    return whole, starts


def by_kind(sounds: Sequence[Sound]) -> tuple[list[Sound], list[Sound]]:
    """(turns, backchannels): recordings whose words are only "mm-hm" are no turns."""
    turns = [s for s in sounds if not is_backchannel(s.text)]
    return turns, [s for s in sounds if is_backchannel(s.text)]
