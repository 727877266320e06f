"""Shapes of logits_mask: what a grammar rules out becomes -inf, in place.

logits float [b, v]; bits int32 [b, words], bit i of word w of a row for token 32 w + i, 1 where the
grammar allows it, as llguidance and xgrammar write them; rows int32 [m] names the rows to mask, a
negative one is skipped. Tokens beyond the last word are ruled out.
"""

from __future__ import annotations

SHAPES = ((1, 64, 2), (3, 1000, 32), (4, 4099, 129), (2, 100, 2))
"""(rows, vocabulary, words)."""


def bytes_moved(m: int, v: int, allowed: int, item: int = 4) -> int:
    """Bits read once, and one write per token ruled out; allowed: tokens left per row."""
    return m * (4 * -(-v // 32) + item * (v - allowed))
