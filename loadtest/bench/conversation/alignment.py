"""Which words of our replies a caller has heard: a ground truth that is not our own counter.

The reply's recorded sound is aligned with its words by the recogniser's cross-attention (dynamic
time warping, as in Whisper's word timestamps), independently of what the voice says of itself.
"""

from __future__ import annotations

from pathlib import Path

import ctranslate2
import numpy as np
import tokenizers

from voice_agent.audio import resample, to_float
from voice_agent.mel import FRAMES_PER_S, whisper_features
from voice_agent.types import IN_RATE, OUT_RATE, Pcm16

FRAME_S = 0.02  # of the encoder
HEARD = 0.5  # share of a word's sound that was played


class Aligner:
    """Word ends of a text in its sound."""

    def __init__(self, model_dir: Path) -> None:
        self._model = ctranslate2.models.Whisper(
            str(model_dir), device="cpu", compute_type="int8", intra_threads=1
        )
        self._tokenizer = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        names = ("<|startoftranscript|>", "<|notimestamps|>")
        self._start = [self._tokenizer.token_to_id(n) for n in names]

    def heard_at(self, text: str, sound: Pcm16) -> list[int]:
        """For each word of `text`, the sample (24 kHz) at which half of it has been played."""
        pcm = to_float(resample(sound, OUT_RATE, IN_RATE))
        frames = 2 * round((len(pcm) / IN_RATE + 1.0) * FRAMES_PER_S / 2)
        features = whisper_features(pcm, frames)
        encoded = self._model.encode(ctranslate2.StorageView.from_array(features[None]))
        words = text.split()
        tokens = [self._tokenizer.encode(" " + w, add_special_tokens=False).ids for w in words]
        flat = [t for word in tokens for t in word]
        found = self._model.align(encoded, self._start, [flat], frames)[0]
        begins: dict[int, float] = {}
        for token, frame in found.alignments:
            begins.setdefault(int(token), frame * FRAME_S)
        edges: list[float] = []
        at = 0
        for word in tokens:
            edges.append(begins.get(at, edges[-1] if edges else 0.0))
            at += len(word)
        edges.append(begins.get(at, len(pcm) / IN_RATE))
        starts, ends = np.array(edges[:-1]), np.array(edges[1:])
        halves = ((1 - HEARD) * starts + HEARD * ends) * OUT_RATE
        return [min(round(s), len(sound)) for s in halves]
