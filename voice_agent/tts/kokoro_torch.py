"""Kokoro through the `kokoro` package and PyTorch: the voice for a GPU, exact word times."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voice_agent.errors import InternalError, UsageError

from .base import AudioPiece, Clause
from .kokoro_text import (
    DEFAULT_STYLE,
    MAX_WORDS,
    PART_WORDS,
    Styles,
    english,
    finish,
    phrase,
)
from .kokoro_weights import CONFIG, load_into
from .phrases import parts
from .sound import silence


class KokoroTorchVoice:
    """Weights rebuilt from kokoro-v1.0.int8.onnx, on `device` ("cpu", "cuda"). Takes seconds.

    Raises UsageError when the kokoro package is missing or a style is unknown.
    """

    exact_times = True

    def __init__(
        self, model: Path, voices: Path, *, style: str = DEFAULT_STYLE, device: str = "cpu"
    ) -> None:
        self._styles = Styles(voices)
        self._device = device
        self._use(style)
        self._model = _build(Path(model)).to(device).eval()
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
        other._accents = self._accents
        other._use(style)
        return other

    def warm(self) -> None:
        from voice_agent.clauses import ClauseSplitter

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
            ids = torch.tensor([spoken.ids], dtype=torch.long, device=self._device)
            style = self._style[max(0, spoken.n_phonemes - 1)]
            with torch.inference_mode():
                sound, durations = self._model.forward_with_tokens(ids, style, speed)
            piece = finish(
                clause,
                spoken,
                np.asarray(sound.float().cpu().numpy(), np.float32).reshape(-1),
                [int(d) for d in durations.reshape(-1).tolist()],
                first_word=first_word,
                offset=offset,
                last=number == len(runs) - 1,
            )
            yield piece
            first_word += len(words)
            offset += len(piece.pcm)


def _build(model: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package uses torch's older weight-norm interface
        try:
            from kokoro.model import KModel
        except ImportError as error:
            raise UsageError(
                f"this voice needs the kokoro package: install the extra 'cpu' or 'cuda' ({error})"
            ) from error
        no_weights = io.BytesIO()
        torch.save({}, no_weights)
        no_weights.seek(0)
        try:
            made = KModel(repo_id="hexgrad/Kokoro-82M", config=dict(CONFIG), model=no_weights)
        except (RuntimeError, KeyError, TypeError) as error:
            raise InternalError(f"the kokoro package cannot build its model: {error}") from error
    load_into(made, model)
    return made
