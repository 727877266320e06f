"""Phonemes from espeak-ng, in this process, aligned to the words they came from.

espeak joins some words ("in the" becomes one) and splits others; the alignment undoes that, because
word times need to know whose phonemes are whose.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import lru_cache

from voice_agent.errors import InternalError

_SETUP = threading.Lock()
_QUIET = logging.getLogger(__name__)
_QUIET.setLevel(logging.ERROR)  # joined words are expected and undone here
_PUNCTUATION = ";:,.!?"
_MAX_JOINED = 4


class Espeak:
    """One espeak voice ("en-us"). Thread-safe: the library works for one caller at a time.

    Raises InternalError when the library or the voice cannot be loaded.
    """

    def __init__(self, voice: str) -> None:
        with _SETUP:
            try:
                import espeakng_loader
                from phonemizer.backend import EspeakBackend
                from phonemizer.backend.espeak.wrapper import EspeakWrapper

                EspeakWrapper.set_library(espeakng_loader.get_library_path())
                EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
                self._backend = EspeakBackend(
                    voice,
                    punctuation_marks=_PUNCTUATION,
                    preserve_punctuation=True,
                    with_stress=True,
                    language_switch="remove-flags",
                    logger=_QUIET,
                )
            except (ImportError, OSError, RuntimeError) as error:
                raise InternalError(
                    f"espeak-ng voice {voice!r} cannot be loaded: {error}"
                ) from error
        self._alone = lru_cache(maxsize=4096)(self._phonemes)
        self._calling = threading.Lock()

    def _phonemes(self, text: str) -> str:
        with self._calling:
            lines: list[str] = self._backend.phonemize([text], strip=True)
        return lines[0] if lines else ""

    def words(self, words: Sequence[str]) -> list[str]:
        """Phonemes of each word in the context of all, its trailing punctuation included.

        A word whose sound was joined to its neighbour's gets its share; the parts concatenated
        with spaces between groups are what the whole text sounds like.
        """
        spoken = self._phonemes(" ".join(words)).split()
        if len(spoken) == len(words):
            return spoken
        return align([self._alone(word) for word in words], spoken)


def align(alone: Sequence[str], spoken: Sequence[str]) -> list[str]:
    """Divide `spoken` (phoneme groups of a text) among words that sound like `alone` by themselves.

    Monotone alignment of least cost over: one group per word, several groups per word, several
    words per group. Words of one group share it in proportion to their own lengths. Words left
    without sound get "".
    """
    n, m = len(alone), len(spoken)
    infinite = float("inf")
    best = [[infinite] * (m + 1) for _ in range(n + 1)]
    step: list[list[tuple[int, int]]] = [[(0, 0)] * (m + 1) for _ in range(n + 1)]
    best[0][0] = 0.0
    moves = [(1, k) for k in range(_MAX_JOINED + 1)] + [(k, 1) for k in range(2, _MAX_JOINED + 1)]
    moves.append((0, 1))
    for i in range(n + 1):
        for j in range(m + 1):
            for words, groups in moves:
                a, b = i - words, j - groups
                if a < 0 or b < 0 or best[a][b] == infinite:
                    continue
                cost = best[a][b] + _distance("".join(alone[a:i]), "".join(spoken[b:j]))
                if cost < best[i][j]:
                    best[i][j], step[i][j] = cost, (words, groups)
    out: list[str] = [""] * n
    i, j = n, m
    while i or j:
        words, groups = step[i][j]
        if not words and not groups:
            break
        joined = " ".join(spoken[j - groups : j])
        if words == 0:
            if i:
                out[i - 1] = f"{out[i - 1]} {joined}".strip()
        else:
            for k, part in enumerate(_shares(joined, [len(a) for a in alone[i - words : i]])):
                out[i - words + k] = f"{part} {out[i - words + k]}".strip()
        i, j = i - words, j - groups
    return out


def _shares(text: str, lengths: Sequence[int]) -> list[str]:
    total, parts, at, upto = sum(lengths) or 1, [], 0, 0
    for i, length in enumerate(lengths):
        upto += length
        end = len(text) if i == len(lengths) - 1 else round(len(text) * upto / total)
        parts.append(text[at:end])
        at = end
    return parts


@lru_cache(maxsize=65536)
def _distance(a: str, b: str) -> float:
    """Edit distance of two short phoneme strings, stress and punctuation ignored."""
    a, b = _bare(a), _bare(b)
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return float(row[-1])


def _bare(text: str) -> str:
    return "".join(c for c in text if c not in "ˈˌː ;:,.!?")
