"""English to measure with: H. G. Wells, The Time Machine (1895), chapters 2 and 3.

The text is in the public domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.text.tokenizer import Tokenizer

WINDOW = 256
"""Tokens that are judged together; every one but the first is predicted."""


def prose(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The text's token ids, about 3800."""
    path = Path(__file__).parent / "data" / "prose.txt"
    return tuple(tokenizer.encode(path.read_text("utf-8").strip()))


def windows(tokens: Sequence[int], most: int = 16) -> list[list[int]]:
    """Whole windows of the text, none overlapping."""
    whole = [list(tokens[at : at + WINDOW]) for at in range(0, len(tokens), WINDOW)]
    return [window for window in whole if len(window) == WINDOW][:most]
