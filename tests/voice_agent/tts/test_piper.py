"""The light voice on its real model: windows, word times, levels, faults."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from voice_agent.clauses import ClauseSplitter
from voice_agent.errors import InternalError, UsageError
from voice_agent.models import ModelStore
from voice_agent.service_time import ServiceTime
from voice_agent.speakable import speak_words
from voice_agent.tts.base import AudioPiece, Clause
from voice_agent.tts.piper import MARGIN, PiperVoice
from voice_agent.types import OUT_RATE, Pcm16

pytestmark = pytest.mark.model

SENTENCE = "Well, the library opens at nine in the morning, and it closes at five on weekdays."


@pytest.fixture(scope="module")
def folder() -> Path:
    return ModelStore().path("piper-joe")


@pytest.fixture(scope="module")
def voice(folder: Path) -> PiperVoice:
    return PiperVoice(folder)


def clause(text: str, pause_ms: int = 0) -> Clause:
    return Clause(0, text, (0, len(text)), speak_words(text, 0), pause_ms)


def say(voice: PiperVoice, text: str, speed: float = 1.0, pause_ms: int = 0) -> list[AudioPiece]:
    made = voice.synthesize(clause(text, pause_ms), speed=speed, cancelled=lambda: False)
    return list(made)


def joined(pieces: list[AudioPiece]) -> Pcm16:
    return np.concatenate([p.pcm for p in pieces])


def test_pieces_words_and_levels(voice: PiperVoice) -> None:
    pieces = say(voice, SENTENCE)
    words = [w for p in pieces for w in p.words]
    said = clause(SENTENCE).words
    pcm = joined(pieces)
    assert [p.last for p in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(p.pcm.dtype == np.int16 and len(p.pcm) for p in pieces)
    assert [w.index for w in words] == list(range(len(said)))
    assert all(a.start < a.end <= b.start for a, b in pairwise(words))
    assert words[-1].end <= len(pcm)
    at = 0
    for piece in pieces:
        assert all(at <= w.start < at + len(piece.pcm) + OUT_RATE // 50 for w in piece.words)
        at += len(piece.pcm)
    assert 0.12 <= len(pcm) / OUT_RATE / len(said) <= 0.6
    assert 3000 <= int(np.abs(pcm.astype(int)).max()) <= 32767
    # each word sounds louder than the quietest tenth of a second
    for w in words:
        assert np.abs(pcm[w.start : w.end].astype(int)).max() > 500


def test_pieces_are_short_where_a_long_one_would_hold_others_up(voice: PiperVoice) -> None:
    usual, fast, slow = say(voice, SENTENCE), ServiceTime(), ServiceTime()
    known = voice._decoding
    try:
        made = []
        for decoding, frame_s in ((fast, 1e-5), (slow, 0.002)):
            for frames in (40, 90):
                decoding.note(frame_s * frames, frames)
            decoding.note = lambda *_: None  # type: ignore[method-assign]
            voice._decoding = decoding
            made.append(say(voice, SENTENCE))
    finally:
        voice._decoding = known
    longest = [max(len(piece.pcm) for piece in pieces) for pieces in made]
    assert longest[0] > 1.0 * OUT_RATE
    assert longest[1] < 0.5 * longest[0], "a window of 32 frames is 80 ms of work and more"
    assert abs(len(joined(made[1])) - len(joined(usual))) < OUT_RATE, "the voice varies a little"


def test_sound_starts_at_once_and_ends_soon_after_the_last_word(voice: PiperVoice) -> None:
    pcm = joined(say(voice, "Hello there, my friend."))
    loud = np.flatnonzero(np.abs(pcm.astype(int)) > 600)
    assert loud[0] < 0.08 * OUT_RATE
    assert len(pcm) - loud[-1] < 0.2 * OUT_RATE


def test_the_first_piece_is_short(voice: PiperVoice) -> None:
    first = say(voice, SENTENCE)[0]
    assert 0.2 <= len(first.pcm) / OUT_RATE <= 0.5


def test_pause_is_appended(voice: PiperVoice) -> None:
    pcm = joined(say(voice, "Hello there.", pause_ms=250))
    assert not pcm[-OUT_RATE // 4 :].any()


def test_speed(voice: PiperVoice) -> None:
    slow, fast = (len(joined(say(voice, SENTENCE, speed))) for speed in (0.8, 1.5))
    assert 1.4 <= slow / fast <= 2.6


def test_windows_make_the_same_sound_as_the_whole(voice: PiperVoice) -> None:
    phrase = voice._phrase(SENTENCE.split(), 1.0)
    whole = voice._decode(phrase.latent)
    n = phrase.latent.shape[2]
    assert n > 4 * MARGIN
    cuts = [0, 20, 52, 53, 117, n]
    parts = [voice._window(phrase.latent, a, b) for a, b in pairwise(cuts)]
    assert np.abs(np.concatenate(parts) - whole).max() < 1e-4


def test_a_long_clause_is_spoken_whole(voice: PiperVoice) -> None:
    text = " ".join(["twenty one words and then some more,"] * 6)
    pieces = say(voice, text)
    words = [w.index for p in pieces for w in p.words]
    assert words == list(range(len(clause(text).words)))
    assert all(len(p.pcm) <= 1.6 * OUT_RATE for p in pieces)


def test_nothing_to_say_is_one_empty_piece(voice: PiperVoice) -> None:
    (piece,) = say(voice, "😀!")
    assert piece.last
    assert len(piece.pcm) == 0
    assert piece.words == ()


def test_stops_between_pieces_when_cancelled(voice: PiperVoice) -> None:
    got: list[AudioPiece] = []
    got += voice.synthesize(clause(SENTENCE), speed=1.0, cancelled=lambda: True)
    assert got == []
    made = voice.synthesize(clause(SENTENCE), speed=1.0, cancelled=lambda: bool(got))
    got.append(next(made))
    assert list(made) == []


@pytest.mark.parametrize("text", ["Zzyzx.", "supercalifragilisticexpialidocious", "a", "I", "Hm?"])
def test_odd_words(voice: PiperVoice, text: str) -> None:
    assert np.abs(joined(say(voice, text)).astype(int)).max() > 300


def test_clauses_of_a_reply(voice: PiperVoice) -> None:
    splitter = ClauseSplitter()
    text = "Sure thing! It costs $5.99, and we are open till 9 p.m. on Sundays. 😀"
    clauses = [*splitter.push(text), *splitter.finish()]
    for c in clauses:
        pieces = list(voice.synthesize(c, speed=1.0, cancelled=lambda: False))
        assert [w.index for p in pieces for w in p.words] == list(range(len(c.words)))


def test_wrong_folders(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="Piper"):
        PiperVoice(tmp_path)
    model = next(folder.glob("*.onnx"))
    copy = tmp_path / model.name
    copy.write_bytes(model.read_bytes()[:200_000])
    settings = Path(f"{copy}.json")
    settings.write_text("{}")
    with pytest.raises(UsageError, match="settings"):
        PiperVoice(tmp_path)
    shutil.copy(f"{model}.json", settings)
    with pytest.raises(InternalError, match="readable"):
        PiperVoice(tmp_path)
    several = json.loads(settings.read_text())
    settings.write_text(json.dumps(several | {"num_speakers": 4}))
    with pytest.raises(UsageError, match="speakers"):
        PiperVoice(tmp_path)
