"""Guesses from the text itself: what followed the last few tokens when they came before."""

from __future__ import annotations

from collections.abc import Sequence

from engine.speculate.proposer import Ask

LONGEST, SHORTEST = 4, 2
"""Tokens of the end that are looked for; a single one says too little."""
WINDOW = 2048
"""Tokens looked back over: it bounds a lookup to a fraction of a millisecond."""


class NgramProposer:
    """Prompt lookup (Saxena 2023): no model, no state. Pays where a reply repeats its context."""

    def propose(self, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
        return [lookup(ask.tokens, ask.k) for ask in asks]

    def forget(self, reply: int) -> None:
        pass

    def forget_call(self, call: str) -> None:
        pass


def lookup(tokens: Sequence[int], k: int) -> tuple[int, ...]:
    """The `k` tokens after the latest earlier place that shares the longest end of `tokens`.

    An end that overlaps its own earlier place is a repetition, and goes on as one. () if fewer than
    `SHORTEST` tokens are shared. Looks at most `WINDOW` tokens back.
    """
    n = len(tokens)
    first = max(0, n - WINDOW)
    best, best_at = SHORTEST - 1, -1
    last = tokens[-1] if n else None
    for at in range(n - 2, first + SHORTEST - 2, -1):
        if tokens[at] != last:
            continue
        most = min(LONGEST, at - first + 1)
        shared = 1
        while shared < most and tokens[at - shared] == tokens[n - 1 - shared]:
            shared += 1
        if shared > best:
            best, best_at = shared, at
            if shared == LONGEST:
                break
    if best_at < 0:
        return ()
    period = n - 1 - best_at
    return tuple(tokens[best_at + 1 + i % period] for i in range(k))
