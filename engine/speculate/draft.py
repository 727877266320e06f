"""Guesses of a second, smaller model with a small KV cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.inputs import Row, SampleRow
from engine.kvcache import BlockTable, KvCache
from engine.launch import StepRunner
from engine.prefix import common_prefix
from engine.speculate.proposer import Ask

CATCH_UP = 64
"""Tokens beyond the guesses that the draft computes in a step: a long prompt takes several."""


@dataclass(slots=True)
class _Draft:
    """tokens: the reply's own list, live. Rows [0, computed) of the table are right for its first
    `computed` tokens; `guessed` are those after them whose rows may turn out right."""

    table: BlockTable
    tokens: Sequence[int]
    computed: int
    guessed: list[int] = field(default_factory=list)

    def catch_up(self) -> None:
        """Count the rows of guesses that have become tokens of the reply."""
        end = self.computed + len(self.guessed)
        self.computed += common_prefix(self.guessed, self.tokens[self.computed : end])
        self.computed = min(self.computed, len(self.tokens))
        self.guessed = []


class DraftProposer:
    """See `Proposer`. The draft chooses as the target does: same settings, same number per place.

    Its cache is a `KvCache` like the target's: turns of a call go on where the last one ended, and
    tenants share nothing. A reply that finds no block, or that has outgrown the draft model, gets
    no guesses.
    """

    def __init__(self, runner: StepRunner) -> None:
        self.kv = KvCache(runner.n_blocks, runner.block_size, max_pinned=0)
        self._runner = runner
        self._drafts: dict[int, _Draft] = {}

    def propose(self, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
        """One step of the draft model over all asks for each guess of the longest."""
        guesses: list[list[int]] = [[] for _ in asks]
        open_asks: list[tuple[Ask, list[int]]] = []
        rows: list[Row] = []
        left = CATCH_UP
        for ask, guess in zip(asks, guesses, strict=True):
            row = self._first(ask, left) if left > 0 else None
            if row is not None:
                open_asks.append((ask, guess))
                rows.append(row)
                left -= len(row.token_ids)
        self._copy()
        while rows:
            going: list[tuple[Ask, list[int]]] = []
            results = self._runner.run(rows)
            for (ask, guess), row, chosen in zip(open_asks, rows, results, strict=True):
                draft = self._drafts[ask.reply]
                if not guess:
                    draft.computed += len(row.token_ids)
                    self.kv.commit(draft.table, draft.tokens, draft.computed)
                else:
                    draft.guessed.append(guess[-1])
                if chosen is not None:
                    guess.append(chosen.token)
                    if len(guess) < ask.k:
                        going.append((ask, guess))
            open_asks = going
            rows = [self._next(ask, guess) for ask, guess in going]
        return [tuple(guess) for guess in guesses]

    def forget(self, reply: int) -> None:
        draft = self._drafts.pop(reply, None)
        if draft is not None:
            draft.catch_up()
            self.kv.close(draft.table, draft.tokens, draft.computed, keep=True)

    def forget_call(self, call: str) -> None:
        self.kv.prefix.forget(call)

    def _first(self, ask: Ask, most: int) -> Row | None:
        """At most so many of the tokens that the draft has not seen yet; None without room."""
        known = len(ask.tokens)
        draft = self._drafts.get(ask.reply)
        if draft is None:
            table, computed = self.kv.open(ask.scope, ask.tokens, known - 1, 0.0)
            draft = self._drafts[ask.reply] = _Draft(table, ask.tokens, computed)
        draft.catch_up()
        start = min(draft.computed, known - 1)
        end = min(known, start + most)
        need = known + ask.k if end == known else end
        if need > self._runner.max_model_len or not self.kv.grow(draft.table, need):
            self.forget(ask.reply)
            return None
        draft.computed = start
        sample = SampleRow(ask.params, known, ask.seed) if end == known else None
        return Row(tuple(ask.tokens[start:end]), start, tuple(draft.table.blocks), sample)

    def _next(self, ask: Ask, guess: Sequence[int]) -> Row:
        draft, at = self._drafts[ask.reply], len(ask.tokens) + len(guess) - 1
        sample = SampleRow(ask.params, at + 1, ask.seed)
        return Row((guess[-1],), at, tuple(draft.table.blocks), sample)

    def _copy(self) -> None:
        copies = self.kv.take_copies()
        for copy in copies:
            self._runner.copy_block(copy.src, copy.dst, copy.n_rows)
        self.kv.copied(copies)
