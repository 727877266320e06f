"""Runs of words short enough for one pass of a voice."""

from __future__ import annotations

from collections.abc import Sequence


def parts(words: Sequence[str], most: int, part: int) -> list[list[str]]:
    """`words` whole when at most `most`, else runs of about `part`, cut after punctuation where
    there is any in the second half of a run."""
    left, out = list(words), []
    while len(left) > most:
        cut = next((n for n in range(part, part // 2, -1) if left[n - 1][-1] in ",.;:!?"), part)
        out.append(left[:cut])
        left = left[cut:]
    return [*out, left]
