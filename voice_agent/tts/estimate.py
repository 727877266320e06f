"""Word times for a voice that tells none: where the words of a clause probably lie in its sound.

A word gets time by its letters. While sound comes in pieces, an ordinary speaker's slow pace is
assumed, so that a word is rather counted late than before it was heard; the last piece tells how
long the clause really is, and the words still to come share what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import numpy as np

from voice_agent.types import OUT_RATE, Pcm16

from .base import AudioPiece, Clause, SpokenWord, WordTime

LETTER = OUT_RATE * 75 // 1000  # samples
PAUSE_LETTERS = {",": 2, ";": 3, ":": 3, ".": 4, "?": 4, "!": 4}
_BLOCK = OUT_RATE // 200
_QUIET = 0.02  # of the loudest block


def timed(clause: Clause, pieces: Iterator[AudioPiece], *, speed: float) -> Iterator[AudioPiece]:
    """The same pieces, with a time for every word of the clause. Pieces that have words of their
    own keep them, and nothing is estimated from then on."""
    left = list(enumerate(clause.words))
    begun = cursor = 0
    told = False
    for piece in pieces:
        told = told or bool(piece.words)
        if told:
            yield piece
            continue
        end = begun + len(piece.pcm)
        if piece.last:
            sounds = begun + _sounding(piece.pcm)
            words = _shared(left, min(cursor, sounds), sounds)
            left = []
        else:
            words = []
            while left:
                i, word = left[0]
                after = cursor + round(_letters(word) * LETTER / speed)
                if after > end:
                    break  # its end is not known yet
                words.append(WordTime(i, cursor, after))
                del left[0]
                cursor = after
        yield replace(piece, words=tuple(words))
        begun = end


def _letters(word: SpokenWord) -> int:
    """A word's length; a breath after punctuation counts as the word's."""
    return 1 + sum(map(str.isalnum, word.text)) + PAUSE_LETTERS.get(word.text[-1], 0)


def _shared(words: list[tuple[int, SpokenWord]], start: int, end: int) -> list[WordTime]:
    """Samples [start, end) among words, by their letters; none after the clause's last word."""
    sizes = [_letters(word) for _, word in words]
    if sizes:
        sizes[-1] -= PAUSE_LETTERS.get(words[-1][1].text[-1], 0)
    edges = [0, *accumulate(sizes)]
    at = [start + round((end - start) * edge / max(1, edges[-1])) for edge in edges]
    return [WordTime(i, a, b) for (i, _), a, b in zip(words, at, at[1:], strict=False)]


def _sounding(pcm: Pcm16) -> int:
    """Where the silence at the end begins."""
    n = len(pcm) // _BLOCK
    if not n:
        return len(pcm)
    peaks = np.abs(pcm[: n * _BLOCK].astype(np.int32)).reshape(n, _BLOCK).max(axis=1)
    loud = np.flatnonzero(peaks > _QUIET * max(1, int(peaks.max())))
    return (int(loud[-1]) + 1) * _BLOCK if loud.size else len(pcm)
