from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.detokenizer import Detokenizer

pytestmark = pytest.mark.unit

PIECES = [bytes([i]) for i in range(256)] + ["é".encode(), "你好".encode(), "🙂".encode(), b""]


def pieces(token: int) -> bytes:
    return PIECES[token]


def text_of(tokens: list[int]) -> str:
    return b"".join(PIECES[t] for t in tokens).decode("utf-8", "replace")


@given(st.lists(st.integers(0, len(PIECES) - 1)))
def test_deltas_add_up_to_the_decode(tokens: list[int]) -> None:
    detokenizer = Detokenizer(pieces)
    deltas = [detokenizer.push(token) for token in tokens]
    assert "".join(deltas) + detokenizer.finish() == text_of(tokens)


@given(st.text(), st.integers(1, 4))
def test_a_text_cut_anywhere_never_shows_a_broken_character(text: str, size: int) -> None:
    data = text.encode("utf-8", "replace")
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    detokenizer = Detokenizer(parts.__getitem__)
    shown = ""
    for i in range(len(parts)):
        shown += detokenizer.push(i)
        assert data.decode().startswith(shown)
    assert shown + detokenizer.finish() == data.decode()


def test_an_unfinished_character_waits() -> None:
    smile = "🙂".encode()
    detokenizer = Detokenizer(lambda token: smile[token : token + 1])
    assert [detokenizer.push(i) for i in range(4)] == ["", "", "", "🙂"]


@given(st.lists(st.sampled_from([0x80, 0xBF, 0xF0, 0xE2, 0xC3, 0xFF]), min_size=1, max_size=400))
def test_endless_broken_bytes_are_bounded(tokens: list[int]) -> None:
    """Never more than one unfinished character (three bytes) is withheld."""
    detokenizer = Detokenizer(pieces)
    shown = ""
    for n, token in enumerate(tokens, start=1):
        shown += detokenizer.push(token)
        assert len(text_of(tokens[:n])) - len(shown) <= 1  # one unfinished character
    assert shown + detokenizer.finish() == text_of(tokens)


def test_the_prompt_does_not_leak() -> None:
    """A prompt that ended inside a character: the output's first bytes stand for themselves."""
    tail = "é".encode()[1:]
    detokenizer = Detokenizer(lambda token: tail if token == 0 else b"a")
    assert detokenizer.push(0) + detokenizer.push(1) == "\ufffda"
