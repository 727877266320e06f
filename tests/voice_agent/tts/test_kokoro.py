"""Kokoro: symbols and weights mapping without models, the voice itself on the real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voice_agent.errors import InternalError, UsageError
from voice_agent.models import ModelStore
from voice_agent.speakable import speak_words
from voice_agent.tts.base import Clause
from voice_agent.tts.kokoro_onnx import KokoroOnnxVoice
from voice_agent.tts.kokoro_text import STYLE_SHAPE, SYMBOLS, Styles, finish, phrase
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.model


def clause(text: str, pause_ms: int = 0) -> Clause:
    return Clause(0, text, (0, len(text)), speak_words(text, 0), pause_ms)


def test_alphabet() -> None:
    assert len(SYMBOLS) == 114
    assert max(SYMBOLS.values()) == 177
    assert (SYMBOLS[";"], SYMBOLS[" "], SYMBOLS["ɡ"], SYMBOLS["ˈ"]) == (1, 16, 92, 156)


def test_phrase_places_words_between_spaces() -> None:
    spoken = phrase(["hˈA,", "", "ju"])
    assert spoken.ids[0] == spoken.ids[-1] == 0
    assert spoken.places == [(1, 4), (5, 5), (6, 8)]
    assert spoken.n_phonemes == 7


def test_finish_places_words_and_refuses_silence() -> None:
    spoken = phrase(["a", "b"])
    durations = [10, 4, 2, 4, 8]
    sound = np.zeros(sum(durations) * 600, np.float32)
    sound[8 * 600 : 20 * 600] = 0.3
    piece = finish(clause("a b"), spoken, sound, durations, first_word=3, offset=1000, last=False)
    first, second = piece.words
    assert (first.index, second.index) == (3, 4)
    assert first.start == 1000
    assert second.start - first.end == 2 * 600
    assert np.abs(piece.pcm[:400]).max() > 1000
    for broken in (sound * 0, sound * np.nan, sound[:0]):
        with pytest.raises(InternalError):
            finish(clause("a b"), spoken, broken, durations, first_word=0, offset=0, last=True)


def test_styles(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Kokoro voices"):
        Styles(tmp_path)
    np.zeros(STYLE_SHAPE, np.float32).tofile(tmp_path / "af_one.bin")
    (tmp_path / "am_two.bin").write_bytes(b"short")
    (tmp_path / "zf_three.bin").write_bytes(b"")
    styles = Styles(tmp_path)
    assert styles.names == ["af_one", "am_two"]
    assert styles.load("af_one").shape == STYLE_SHAPE
    with pytest.raises(UsageError, match="af_one, am_two"):
        styles.load("nobody")
    with pytest.raises(InternalError, match="damaged"):
        styles.load("am_two")


@pytest.fixture(scope="module")
def voice() -> KokoroOnnxVoice:
    store = ModelStore()
    if not (store.present("kokoro-int8") and store.present("kokoro-voices")):
        pytest.skip("kokoro-int8 and kokoro-voices are not in the store")
    return KokoroOnnxVoice(store.path("kokoro-int8"), store.path("kokoro-voices"))


def test_speaks_with_exact_word_times(voice: KokoroOnnxVoice) -> None:
    said = clause("Paris is the capital of France.", 100)
    (piece,) = voice.synthesize(said, speed=1.0, cancelled=lambda: False)
    assert piece.last
    assert [w.index for w in piece.words] == list(range(6))
    assert all(w.start < w.end for w in piece.words)
    seconds = len(piece.pcm) / OUT_RATE
    assert 1.2 < seconds < 3.5
    loud = np.flatnonzero(np.abs(piece.pcm.astype(int)) > 600)
    assert loud[0] < 0.1 * OUT_RATE, "leading silence is trimmed"
    assert not piece.pcm[-OUT_RATE // 10 :].any()


def test_other_styles_share_the_model(voice: KokoroOnnxVoice) -> None:
    other = voice.styled("bm_george")
    assert other.name == "kokoro:bm_george"
    assert "af_heart" in voice.style_names
    (piece,) = other.synthesize(clause("Hello."), speed=1.2, cancelled=lambda: False)
    assert np.abs(piece.pcm.astype(int)).max() > 1000
    with pytest.raises(UsageError, match="af_heart"):
        voice.styled("af_nobody")
    (empty,) = voice.synthesize(clause("😀"), speed=1.0, cancelled=lambda: False)
    assert empty.last
    assert not len(empty.pcm)
