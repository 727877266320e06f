"""A caller's ear: tokens become clauses, clauses become sound, and sound must not run out."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer
from voice_agent.clauses import ClauseSplitter

CLAUSE = 14
"""Tokens of a clause after the first: what `ClauseSplitter` makes of the benchmark's prose on
average (80 % of them have 6 to 20)."""
FIRST_CLAUSE = 7
"""Of the first one, on average (80 % have 4 to 9)."""
TOKENS_PER_S = 4.0
"""How fast a voice speaks what the engine makes."""
SERVICE_S = 0.08
"""The voice's time from a clause's text to its first sound."""


def passages(tokenizer: Tokenizer, tokens: Sequence[int], n_tokens: int) -> list[tuple[int, ...]]:
    """What is said from every sentence's beginning on: tokens of each clause, `n_tokens` in all.

    The text goes round. Clauses are those of `ClauseSplitter`, each complete with the token after
    which it is spoken.
    """
    detokenizer = Detokenizer(tokenizer.token_bytes)
    pieces = [detokenizer.push(token) for token in tokens]
    ends = [piece.strip(" '\n").endswith((".", "!", "?")) for piece in pieces]
    starts = [0, *(at + 1 for at, end in enumerate(ends[:-1]) if end)]
    return [_cuts([pieces[(at + i) % len(pieces)] for i in range(n_tokens)]) for at in starts]


def _cuts(pieces: Sequence[str]) -> tuple[int, ...]:
    splitter, cuts, since = ClauseSplitter(), [], 0
    for piece in pieces:
        since += 1
        if splitter.push(piece):
            cuts.append(since)
            since = 0
    return tuple(cuts)


class Voice:
    """One reply's playout, in seconds of one clock. `dry_at` is when the ear next needs sound."""

    def __init__(self, cuts: Sequence[int] = ()) -> None:
        """cuts: tokens of each clause; those after them have the average."""
        self._cuts = cuts
        self.dry_at: float | None = None
        self.started_s: float | None = None
        self.underruns = 0
        self.dry_s = self.longest_dry_s = 0.0
        self._pending = 0
        self._clauses = 0

    def hear(self, now: float, n_tokens: int, *, last: bool = False) -> None:
        """Tokens came; `last`: the reply ends with them."""
        self._pending += n_tokens
        need = self._needed()
        while self._pending >= need or (last and self._pending):
            clause = min(need, self._pending)
            self._pending -= clause
            self._speak(now + SERVICE_S, clause)
            need = self._needed()

    def _needed(self) -> int:
        """Tokens of the clause to come."""
        if self._clauses < len(self._cuts):
            return self._cuts[self._clauses]
        return CLAUSE if self._clauses else FIRST_CLAUSE

    def _speak(self, ready_s: float, n_tokens: int) -> None:
        self._clauses += 1
        if self.dry_at is None:
            self.started_s = ready_s
        elif ready_s > self.dry_at:
            self.underruns += 1
            self.dry_s += ready_s - self.dry_at
            self.longest_dry_s = max(self.longest_dry_s, ready_s - self.dry_at)
        begin = ready_s if self.dry_at is None else max(ready_s, self.dry_at)
        self.dry_at = begin + n_tokens / TOKENS_PER_S
