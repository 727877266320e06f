"""Phoneme groups back to words."""

from __future__ import annotations

import pytest

from voice_agent.tts.espeak import Espeak, align

pytestmark = pytest.mark.unit


def test_joined_words_share_their_sound() -> None:
    parts = align(["ɪn", "ðə", "mɔːnɪŋ"], ["ɪnðə", "mɔːnɪŋ"])
    assert parts == ["ɪn", "ðə", "mɔːnɪŋ"]


def test_split_words_keep_all_their_sound() -> None:
    assert align(["eɪbiː", "siː"], ["eɪ", "biː", "siː"]) == ["eɪ biː", "siː"]


def test_mute_words_get_nothing() -> None:
    assert align(["a", "", "b"], ["a", "b"]) == ["a", "", "b"]
    assert align(["a", "b"], []) == ["", ""]
    assert align([], []) == []


def test_one_part_per_word_whatever_espeak_joins() -> None:
    espeak = Espeak("en-us")
    text = "Well, the library opens at nine in the morning of the day, as I said to you."
    words = text.split()
    parts = espeak.words(words)
    assert len(parts) == len(words)
    assert all(parts)
    assert "".join(parts).replace(" ", "") == "".join(espeak._phonemes(" ".join(words)).split())
    assert parts[0].endswith(",")
