from __future__ import annotations

import pytest

from engine.output import TextStream

pytestmark = pytest.mark.unit


def stream(text: str, stops=(), sizes=(1,)) -> tuple[TextStream, list[str]]:
    """Feed the bytes of `text` in tokens of the given sizes, in turn."""
    data, pieces, at = text.encode(), [], 0
    while at < len(data):
        pieces.append(data[at : at + sizes[len(pieces) % len(sizes)]])
        at += len(pieces[-1])
    out = TextStream(pieces.__getitem__, stops)
    texts = []
    for token in range(len(pieces)):
        texts.append(out.push(token))
        if out.stopped:
            return out, texts
    texts.append(out.finish())
    return out, texts


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (1, 4), (7,)])
def test_the_pieces_add_up_and_no_character_is_split(sizes):
    text = "naïve café — 東京 🙂 done"
    _, texts = stream(text, sizes=sizes)
    assert "".join(texts) == text
    assert "\ufffd" not in "".join(texts)


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (5, 1), (64,)])
def test_nothing_of_a_stop_string_is_shown(sizes):
    out, texts = stream("one two END three", ["END", "thr"], sizes)
    assert out.stopped
    assert "".join(texts) == "one two "
    assert out.finish() == ""


def test_a_beginning_of_a_stop_string_is_shown_in_the_end():
    _, texts = stream("no EN", ["END"])
    assert "".join(texts) == "no EN"
    assert texts[-1] == "EN"


def test_a_stop_string_of_split_characters():
    out, texts = stream("a🙂b", ["🙂"])
    assert out.stopped
    assert "".join(texts) == "a"


def test_an_unfinished_character_at_the_end_is_replaced():
    out = TextStream([b"a", "é".encode()[:1]].__getitem__, ["zz"])
    assert out.push(0) + out.push(1) + out.finish() == "a\ufffd"
