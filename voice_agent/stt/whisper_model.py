"""Whisper on CTranslate2, one blocking pass: features, a short encoder window, greedy decoding.

`WhisperModel.transcribe` of faster-whisper pads every pass to 30 s. Here the encoder sees only the
speech plus a margin (Radford et al. 2022 train on 30 s; below the margin the decoder loops).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import tokenizers

from voice_agent.errors import InternalError, UsageError
from voice_agent.mel import FRAMES_PER_S, RATE, whisper_features
from voice_agent.types import PcmF32

from .cublas import load_cublas
from .guards import trim_repeats

MAX_SECONDS = 30.0
FILES = ("model.bin", "config.json", "tokenizer.json", "vocabulary.txt")
TOKENS_PER_S = 8  # fast speech is 6; the cap ends loops early
TOKENS_SPARE = 10
MAX_TOKENS = 224  # half the decoder's positions
COMPUTE = {"cpu": "int8", "cuda": "float16"}


@dataclass(frozen=True, slots=True)
class Window:
    """Encoder window of a pass: max(min_s, speech + margin_s), 30 s at most."""

    min_s: float
    margin_s: float

    def frames(self, speech_s: float) -> int:
        seconds = min(MAX_SECONDS, max(self.min_s, speech_s + self.margin_s))
        return 2 * round(seconds * FRAMES_PER_S / 2)  # the encoder halves the frame rate


ENGLISH_WINDOW = Window(12.0, 3.0)
MULTILINGUAL_WINDOW = Window(10.0, 2.0)


@dataclass(frozen=True, slots=True)
class Decoded:
    """words: prefix included. avg_logprob: of the generated tokens. capped: ended by the limit."""

    words: tuple[str, ...]
    avg_logprob: float
    no_speech_prob: float
    n_generated: int
    capped: bool


class WhisperModel:
    """A loaded Whisper (tiny.en, base, ...). Thread-safe; further passes than `workers` wait.

    device: "cpu" computes in int8, "cuda" in fp16, on a stream of CTranslate2's own. Raises
    UsageError when files are missing, InternalError when they can't be loaded on that device.
    """

    def __init__(
        self,
        model_dir: Path,
        threads: int = 1,
        language: str = "en",
        *,
        device: str = "cpu",
        workers: int = 1,
    ) -> None:
        missing = [name for name in FILES if not (model_dir / name).is_file()]
        if missing:
            raise UsageError(
                f"the recognition model in {model_dir} is incomplete: {', '.join(missing)} missing",
                code="VA125",
            )
        if device == "cuda" and (problem := load_cublas()):
            raise InternalError(problem)
        try:
            self._model = ctranslate2.models.Whisper(
                str(model_dir),
                device=device,
                compute_type=COMPUTE[device],
                intra_threads=threads,
                inter_threads=workers,
            )
            self._tokenizer = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
            config = json.loads((model_dir / "config.json").read_text())
        except Exception as error:
            raise InternalError(
                f"the recognition model in {model_dir} cannot be loaded: {error}"
            ) from error
        self.multilingual = bool(self._model.is_multilingual)
        self.n_mels = int(self._model.n_mels)
        self.window = MULTILINGUAL_WINDOW if self.multilingual else ENGLISH_WINDOW
        self._start = self._start_tokens(language)
        self._suppress: list[int] = list(config.get("suppress_ids", [-1]))

    def decode(self, pcm: PcmF32, prefix: Sequence[str] = ()) -> Decoded:
        """One pass. pcm: float32 [n] at 16 kHz, at most 30 s (the rest is cut). prefix: words that
        the transcript is known to begin with; they are forced and returned unchanged.
        """
        pcm = pcm[: int(MAX_SECONDS * RATE)]
        speech_s = len(pcm) / RATE
        features = whisper_features(pcm, self.window.frames(speech_s), self.n_mels)
        encoded = self._model.encode(ctranslate2.StorageView.from_array(features[None]))
        forced = self._encode_words(prefix)
        limit = min(MAX_TOKENS, TOKENS_SPARE + max(int(speech_s * TOKENS_PER_S), len(forced)))
        result = self._model.generate(
            encoded,
            [self._start + forced],
            beam_size=1,
            max_length=2 * limit,  # CTranslate2 generates half of it, forced tokens included
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=not forced,  # after a prefix, "nothing more" is a valid answer
            suppress_tokens=self._suppress,
        )[0]
        return self._read(result, prefix, len(forced), limit)

    def _read(self, result: Any, prefix: Sequence[str], n_forced: int, limit: int) -> Decoded:
        ids: list[int] = result.sequences_ids[0]
        tail = self._tokenizer.decode(ids[n_forced:], skip_special_tokens=True)
        if prefix and tail[:1].strip():  # glued to the last forced word, which never changes
            _, _, tail = tail.partition(" ")
        n_generated = max(0, len(ids) - n_forced)
        capped = len(ids) >= limit - 1
        words = trim_repeats((*prefix, *tail.split()), capped=capped)
        if len(words) < len(prefix):
            words = tuple(prefix)
        total = result.scores[0] * max(1, len(ids))  # the mean includes forced tokens at 0
        return Decoded(
            words=words,
            avg_logprob=total / max(1, n_generated),
            no_speech_prob=float(result.no_speech_prob),
            n_generated=n_generated,
            capped=capped,
        )

    def _encode_words(self, words: Sequence[str]) -> list[int]:
        if not words:
            return []
        ids: list[int] = self._tokenizer.encode(" " + " ".join(words), add_special_tokens=False).ids
        return ids

    def _start_tokens(self, language: str) -> list[int]:
        names = ["<|startoftranscript|>"]
        if self.multilingual:
            names += [f"<|{language}|>", "<|transcribe|>"]
        elif language != "en":
            raise UsageError(
                f"this recognition model hears English only, not {language!r}", code="VA126"
            )
        names.append("<|notimestamps|>")
        ids: list[int] = []
        for name in names:
            token = self._tokenizer.token_to_id(name)
            if token is None:
                raise UsageError(f"this recognition model does not know {name}", code="VA126")
            ids.append(token)
        return ids
