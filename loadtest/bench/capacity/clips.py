"""What the simulated callers say: recordings with their words, judged by the real models once."""

from __future__ import annotations

import csv
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from voice_agent.audio import read_wav, to_float
from voice_agent.models import ModelStore
from voice_agent.smart_turn import SmartTurn
from voice_agent.stt.streaming import FLOOR_RMS, PEAK_RATIO
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.types import IN_FRAME, IN_RATE, Pcm16
from voice_agent.vad import WINDOW, SileroVad

ALIGN = 2560
"""Samples after which a frame and a window of the detector begin together."""
TAIL = 8 * WINDOW
"""Silence behind a clip in which the detector lets go of it."""
VOICED = 0.5
MIN_S, MAX_S, MAX_PAUSE_S = 1.5, 8.0, 0.2
PAUSE, FINISHED = 4 * WINDOW, 0.5


@dataclass(frozen=True, slots=True)
class Clip:
    """One utterance. pcm: int16 [n] at 16 kHz, n a multiple of ALIGN. ends: sample at which each
    word is whole. probs: one for each window. voiced_end: end of the last voiced window."""

    name: str
    pcm: Pcm16
    words: tuple[str, ...]
    ends: tuple[int, ...]
    probs: tuple[float, ...]
    voiced_end: int

    def words_by(self, sample: int) -> int:
        return bisect_right(self.ends, sample)


def make_clip(name: str, pcm: Pcm16, words: tuple[str, ...], vad: SileroVad) -> Clip:
    """Words are spread evenly from the first voiced window to the last loud frame, where the
    recogniser hears the last of them. Raises ValueError without voice and words."""
    whole = np.concatenate([pcm, np.zeros(TAIL + -(len(pcm) + TAIL) % ALIGN, np.int16)])
    probs = [float(p) for p in vad.probabilities(to_float(whole))]
    voiced = [i for i, p in enumerate(probs) if p >= VOICED]
    if not voiced or not words:
        raise ValueError(f"{name}: nobody speaks words")
    begin, end = voiced[0] * WINDOW, (voiced[-1] + 1) * WINDOW
    heard = min(end, max(begin + WINDOW, loud_end(whole)))
    ends = tuple(begin + (heard - begin) * (i + 1) // len(words) for i in range(len(words)))
    return Clip(name, whole, words, ends, tuple(probs), end)


def loud_end(pcm: Pcm16) -> int:
    """The end of the last frame that an `Utterance` takes for voice: a detector's own end lies up
    to 120 ms behind it. 0 in silence."""
    frames = pcm[: len(pcm) // IN_FRAME * IN_FRAME].astype(np.float32).reshape(-1, IN_FRAME)
    rms = np.sqrt(np.square(frames).mean(axis=1))
    loud = np.flatnonzero(rms >= max(FLOOR_RMS, PEAK_RATIO * float(rms.max(initial=0.0))))
    return 0 if not len(loud) else int(loud[-1] + 1) * IN_FRAME


@dataclass(slots=True)
class Judge:
    """The end-of-turn model's answers, each computed once; without the model always `usual`."""

    usual: float = 0.9
    _model: SmartTurn | None = None
    _known: dict[tuple[str, int], float] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Judge:
        store = ModelStore()
        return cls(_model=SmartTurn(store.path("smart-turn-v3.2")))

    def complete_at(self, clip: Clip, sample: int) -> float:
        """P(turn complete) once `sample` samples of the clip were heard."""
        if self._model is None:
            return self.usual
        at = min(len(clip.pcm), max(IN_FRAME, sample // IN_FRAME * IN_FRAME))
        key = (clip.name, at)
        if key not in self._known:
            self._known[key] = self._model.predict(to_float(clip.pcm[:at]))
        return self._known[key]

    def close(self) -> None:
        if self._model is not None:
            self._model.close()


def load_clips(folder: Path, recognizer: WhisperRecognizer, judge: Judge) -> list[Clip]:
    """Utterances of the folder's transcripts.tsv, 1.5 to 8 s long, with the words that the
    recogniser hears in them. Those with inner pauses and those that do not sound finished are left
    out: what they would measure is the end of the turn, which is the same at any load."""
    vad, out = SileroVad(), []
    with (folder / "transcripts.tsv").open(newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            if float(row["max_inner_pause_s"] or 0) > MAX_PAUSE_S:
                continue
            if MIN_S <= float(row["duration_s"]) <= MAX_S:
                pcm = read_wav(folder / row["file"], IN_RATE).pcm
                words = recognizer.recognize(to_float(pcm), final=True).words
                clip = make_clip(row["file"], pcm, words, vad)
                if judge.complete_at(clip, clip.voiced_end + PAUSE) >= FINISHED:
                    out.append(clip)
    return out
