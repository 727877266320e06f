"""A caller's ear: tokens become clauses, clauses become sound, and sound must not run out."""

from __future__ import annotations

CLAUSE = 14
"""Tokens of a clause after the first: what `ClauseSplitter` makes of the benchmark's prose on
average (80 % of them have 6 to 20)."""
FIRST_CLAUSE = 7
"""Of the first one, on average (80 % have 4 to 9)."""
TOKENS_PER_S = 4.0
"""How fast a voice speaks what the engine makes."""
SERVICE_S = 0.08
"""The voice's time from a clause's text to its first sound."""


class Voice:
    """One reply's playout, in seconds of one clock. `dry_at` is when the ear next needs sound."""

    def __init__(self) -> None:
        self.dry_at: float | None = None
        self.started_s: float | None = None
        self.underruns = 0
        self.dry_s = self.longest_dry_s = 0.0
        self._pending = 0
        self._clauses = 0

    def hear(self, now: float, n_tokens: int, *, last: bool = False) -> None:
        """Tokens came; `last`: the reply ends with them."""
        self._pending += n_tokens
        need = CLAUSE if self._clauses else FIRST_CLAUSE
        while self._pending >= need or (last and self._pending):
            clause = min(need, self._pending)
            self._pending -= clause
            self._speak(now + SERVICE_S, clause)
            need = CLAUSE

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
