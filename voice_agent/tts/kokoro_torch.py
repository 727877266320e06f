"""Kokoro in PyTorch: the voice for a GPU, exact word times."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from voice_agent.types import PcmF32

from .base import AudioPiece, Clause
from .kokoro_cuda import FrameGraphs
from .kokoro_model import KokoroModel
from .kokoro_text import (
    DEFAULT_STYLE,
    MAX_WORDS,
    PART_WORDS,
    Phrase,
    Styles,
    english,
    finish,
    phrase,
)
from .kokoro_weights import load_into
from .phrases import parts
from .sound import silence

log = logging.getLogger(__name__)


class KokoroTorchVoice:
    """Weights rebuilt from kokoro-v1.0.int8.onnx, on `device` ("cpu", "cuda"). Takes seconds.

    On CUDA `warm` captures the graphs; before it, and for very long phrases, kernels run one by
    one. Raises UsageError when a style is unknown, InternalError for damaged files.
    """

    exact_times = True

    def __init__(
        self, model: Path, voices: Path, *, style: str = DEFAULT_STYLE, device: str = "cpu"
    ) -> None:
        self._styles = Styles(voices)
        self._device = device
        self._use(style)
        self._model = KokoroModel().eval().requires_grad_(False)
        load_into(self._model, Path(model))
        self._model.to(device)
        self._graphs = FrameGraphs(self._model) if device == "cuda" else None
        self._accents = {style.startswith("b"): english(style, {})}

    def _use(self, style: str) -> None:
        self._style = torch.from_numpy(self._styles.load(style)).to(self._device)
        self._style_name = style
        self.name = f"kokoro:{style}"

    @property
    def style_names(self) -> list[str]:
        return self._styles.names

    def styled(self, style: str) -> KokoroTorchVoice:
        """The same loaded model with another style. Raises UsageError listing the names."""
        other = object.__new__(type(self))
        other._styles, other._device, other._model = self._styles, self._device, self._model
        other._accents, other._graphs = self._accents, self._graphs
        other._use(style)
        return other

    def warm(self) -> None:
        from voice_agent.clauses import ClauseSplitter

        if self._graphs is not None:
            self._graphs.capture()
            with self._on_our_stream():
                longest_ms = self._graphs.longest_ms()
            log.info("the sound of the longest phrase takes %.1f ms", longest_ms)
        for text in ("Hello there. ", "This is how a somewhat longer sentence sounds to me. "):
            for clause in ClauseSplitter().push(text):
                for _ in self.synthesize(clause, speed=1.0, cancelled=lambda: False):
                    pass

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        """One piece per run of at most 16 words. Raises InternalError on silence."""
        if not clause.words:
            yield AudioPiece(silence(0), (), True)
            return
        runs = parts([w.text for w in clause.words], MAX_WORDS, PART_WORDS)
        first_word = offset = 0
        for number, words in enumerate(runs):
            if cancelled():
                return
            spoken = phrase(english(self._style_name, self._accents).words(words))
            sound, durations = self._say(spoken, speed)
            piece = finish(
                clause,
                spoken,
                sound,
                durations,
                first_word=first_word,
                offset=offset,
                last=number == len(runs) - 1,
            )
            yield piece
            first_word += len(words)
            offset += len(piece.pcm)

    def _say(self, spoken: Phrase, speed: float) -> tuple[PcmF32, list[int]]:
        """Sound fp32 [n] of a phrase, and the frames of each id."""
        style = self._style[max(0, spoken.n_phonemes - 1)]
        with torch.inference_mode(), self._on_our_stream():
            ids = torch.tensor([spoken.ids], device=self._device)
            made = self._model.features(ids, style, speed)
            second_half = self._graphs or self._model.sound
            sound = second_half(made.rhythm, made.asr, style)
            return sound.cpu().numpy(), made.durations.tolist()

    def _on_our_stream(self) -> contextlib.AbstractContextManager[object]:
        if self._graphs is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self._graphs.stream)
