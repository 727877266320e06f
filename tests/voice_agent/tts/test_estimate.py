"""Words are placed in sound that a voice tells nothing of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from voice_agent.clauses import ClauseSplitter
from voice_agent.tts.base import AudioPiece, Clause, WordTime
from voice_agent.tts.estimate import LETTER, timed
from voice_agent.types import OUT_RATE, Pcm16

pytestmark = pytest.mark.unit

MS = OUT_RATE // 1000


def clause(text: str) -> Clause:
    return ClauseSplitter().push(text + " ")[0]


def spoken(said: Clause, letter_ms: float) -> tuple[Pcm16, list[tuple[int, int]]]:
    """Noise for as long as each word has letters, 30 ms of silence between; a pause at the end."""
    rng, parts, spans, at = np.random.default_rng(0), [], [], 0
    for word in said.words:
        n = round(letter_ms * MS * sum(map(str.isalpha, word.text)))
        spans.append((at, at + n))
        parts += [rng.integers(-5000, 5000, n), np.zeros(30 * MS)]
        at += n + 30 * MS
    return np.concatenate([*parts, np.zeros(220 * MS)]).astype(np.int16), spans


def pieces(pcm: Pcm16, size: int) -> Iterator[AudioPiece]:
    for at in range(0, len(pcm), size):
        yield AudioPiece(pcm[at : at + size], (), at + size >= len(pcm))


@pytest.mark.parametrize("letter_ms", [45, 60, 90])
def test_a_whole_clause_is_shared_by_letters(letter_ms: float) -> None:
    said = clause("The museum opens at nine and closes at six.")
    pcm, spans = spoken(said, letter_ms)
    (piece,) = timed(said, pieces(pcm, len(pcm)), speed=1.0)
    assert [w.index for w in piece.words] == list(range(len(said.words)))
    for word, (start, end) in zip(piece.words, spans, strict=True):
        assert abs(word.start - start) < 80 * MS
        assert abs(word.end - end) < 80 * MS


@pytest.mark.parametrize("size_ms", [100, 400, 1000])
@pytest.mark.parametrize("letter_ms", [60, 90])
def test_in_pieces_no_word_is_early_and_all_are_placed(size_ms: int, letter_ms: float) -> None:
    said = clause("Children under twelve come in free when an adult is with them.")
    pcm, spans = spoken(said, letter_ms)
    made = list(timed(said, pieces(pcm, size_ms * MS), speed=1.0))
    assert np.array_equal(np.concatenate([p.pcm for p in made]), pcm)
    words = [w for p in made for w in p.words]
    assert [w.index for w in words] == list(range(len(said.words)))
    assert all(a.end <= b.start for a, b in pairwise(words))
    if letter_ms == 60:
        early = [start - w.start for w, (start, _) in zip(words, spans, strict=True)]
        assert max(early) < 80 * MS
    assert words[-1].end <= len(pcm)


def test_speed_makes_words_shorter() -> None:
    said = clause("So it is, as they say.")
    pcm, _ = spoken(said, 60)
    first = [next(timed(said, pieces(pcm, 300 * MS), speed=s)).words[0] for s in (1.0, 2.0)]
    assert first[0].end == 2 * first[1].end == 3 * LETTER


def test_times_that_a_voice_tells_are_kept() -> None:
    said = clause("Just so.")
    own = AudioPiece(np.ones(900, np.int16), (WordTime(0, 1, 2), WordTime(1, 2, 900)), True)
    assert list(timed(said, iter([own]), speed=1.0)) == [own]


def test_silence_alone_ends_somewhere() -> None:
    said = clause("Just so.")
    (piece,) = timed(said, pieces(np.zeros(1000, np.int16), 1000), speed=1.0)
    assert [w.index for w in piece.words] == [0, 1]
    assert piece.words[-1].end <= 1000
