"""Kokoro through onnxruntime: the int8 export, any English style, exact word times.

The export gives sound only; the graph is written again with its durations as a second output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort

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
from .onnx_graph import OnnxGraph
from .phrases import parts
from .sound import silence


class KokoroOnnxVoice:
    """kokoro-v1.0.int8.onnx and a folder of styles. `styled` gives another style, same model.

    Raises UsageError for another kind of model or an unknown style.
    """

    exact_times = True

    def __init__(
        self, model: Path, voices: Path, *, style: str = DEFAULT_STYLE, threads: int = 1
    ) -> None:
        self._styles = Styles(voices)
        self._use(style)
        graph = OnnxGraph(Path(model))
        rounded = [n for n in graph.nodes if n.op == "Clip" and _made_by(graph, n.inputs, "Round")]
        if set(graph.inputs) != {"tokens", "style", "speed"} or len(rounded) != 1:
            raise UsageError(f"{Path(model).name} is not a Kokoro model")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = ort.InferenceSession(
                graph.extract([*graph.outputs, rounded[0].outputs[0]]),
                options,
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:  # onnxruntime's own exception types share no base
            raise InternalError(f"{Path(model).name} cannot be loaded: {error}") from error
        self._accents = {style.startswith("b"): english(style, {})}

    def _use(self, style: str) -> None:
        self._style = self._styles.load(style)
        self._style_name = style
        self.name = f"kokoro:{style}"

    @property
    def style_names(self) -> list[str]:
        return self._styles.names

    def styled(self, style: str) -> KokoroOnnxVoice:
        """The same loaded model with another style. Raises UsageError listing the names."""
        other = object.__new__(type(self))
        other._styles, other._session, other._accents = self._styles, self._session, self._accents
        other._use(style)
        return other

    def warm(self) -> None:
        from voice_agent.clauses import ClauseSplitter

        for clause in ClauseSplitter().push("This is how it sounds. "):
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
            sound, durations = self._session.run(
                None,
                {
                    "tokens": np.array([spoken.ids], np.int64),
                    "style": self._style[max(0, spoken.n_phonemes - 1)],
                    "speed": np.array([speed], np.float32),
                },
            )
            piece = finish(
                clause,
                spoken,
                np.asarray(sound, np.float32).reshape(-1),
                [int(d) for d in np.asarray(durations).reshape(-1)],
                first_word=first_word,
                offset=offset,
                last=number == len(runs) - 1,
            )
            yield piece
            first_word += len(words)
            offset += len(piece.pcm)


def _made_by(graph: OnnxGraph, names: tuple[str, ...], op: str) -> bool:
    return any((node := graph.producer(name)) is not None and node.op == op for name in names)
