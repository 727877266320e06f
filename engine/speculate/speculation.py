"""Speculation as the engine's thread sees it: who may guess, how much, and how well it went."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from engine.budget import StepBudget
from engine.config import EngineConfig
from engine.kvcache import KvCache
from engine.launch import StepRunner
from engine.request import Request
from engine.speculate.draft import DraftProposer
from engine.speculate.gain import faded, learned, worth
from engine.speculate.ngram import NgramProposer
from engine.speculate.proposer import Ask, Proposer

log = logging.getLogger(__name__)

_LEARN = 1 / 16


def may_speculate(request: Request) -> bool:
    """Whether the request is about to decode and its choices depend on no earlier choice.

    A grammar and the penalties look at the tokens before; log probabilities are told per step; and
    among the first `min_tokens` the settings change with the place.
    """
    p = request.params
    return (
        request.remaining == 1
        and not (request.held or request.prefill_only)
        and not (p.penalised or p.logprobs is not None or request.constraint is not None)
        and request.n_output >= p.min_tokens
    )


class Speculation:
    """Owns the proposer. Used by the engine thread only."""

    def __init__(
        self, proposer: Proposer, *, tokens: int, max_seqs: int, now: Callable[[], float]
    ) -> None:
        """tokens: guesses per row and step at most. max_seqs: rows of a step above which none are
        made. now: seconds of any clock."""
        self.proposed = 0
        self.accepted = 0
        self._proposer: Proposer | None = proposer
        self._tokens = tokens
        self._max_seqs = max_seqs
        self._now = now
        self._guess_ms = 0.0  # moving average of making one guess

    def plan(
        self,
        requests: Sequence[Request],
        n_tokens: int,
        budget: StepBudget,
        limit_ms: float,
        kv: KvCache,
        spare_blocks: int,
    ) -> dict[int, int]:
        """Request id -> guesses worth their time; grows the tables for them. Called last of all.

        requests: all that the step advances, by `n_tokens`. limit_ms: of the step. spare_blocks:
        those that nobody is about to need; without them only the room in a row's last block counts.
        """
        if self._proposer is None or len(requests) > self._max_seqs:
            return {}
        step_ms, guess_ms = budget.cost.ms(n_tokens), budget.cost.per_token_ms + self._guess_ms
        room = min(budget.most_tokens - n_tokens, int((limit_ms - step_ms) / guess_ms))
        yields = float(sum(1 for request in requests if request.remaining == 1))
        planned: dict[int, int] = {}
        for request in filter(may_speculate, requests):
            most = min(self._tokens, request.max_new - request.n_output - 1, room)
            k = worth(request.guess_rate, most, yields, step_ms, guess_ms)
            if k <= 0:
                request.guess_rate = faded(request.guess_rate)
                continue
            k, taken = _fit(request, k, kv, spare_blocks)
            spare_blocks -= taken
            if k:
                planned[request.id] = k
                room -= k
        return planned

    def propose(
        self, requests: Sequence[Request], room: Mapping[int, int]
    ) -> dict[int, tuple[int, ...]]:
        """Request id -> its guesses, at most `room[id]`; those without a guess are left out.

        A proposer that fails is not asked again: the text does not depend on it.
        """
        if self._proposer is None or not room:
            return {}
        asks = [
            Ask(r.id, r.tokens, room[r.id], r.params, r.seed, r.scope)
            for r in requests
            if r.id in room
        ]
        started = self._now()
        try:
            guesses = self._proposer.propose(asks)
        except Exception:
            log.exception("speculation fails and is off from now on")
            self._proposer = None
            return {}
        n = sum(map(len, guesses))
        if n:
            took_ms = (self._now() - started) * 1000.0
            self._guess_ms += (took_ms / n - self._guess_ms) * _LEARN
        self.proposed += n
        return {ask.reply: guess for ask, guess in zip(asks, guesses, strict=True) if guess}

    def note(self, request: Request, n_right: int, n_proposed: int) -> None:
        """So many of the guesses for the request became tokens of its reply."""
        self.accepted += n_right
        request.guess_rate = learned(request.guess_rate, n_right, n_proposed)

    def forget(self, request: Request) -> None:
        if self._proposer is not None:
            self._proposer.forget(request.id)

    def forget_call(self, call: str) -> None:
        if self._proposer is not None:
            self._proposer.forget_call(call)


def speculation_for(
    config: EngineConfig, draft: StepRunner | None, now: Callable[[], float]
) -> Speculation | None:
    """What the configuration asks for. draft: the draft model's runner; without one, n-grams."""
    if config.speculation == "off":
        return None
    proposer = NgramProposer() if draft is None else DraftProposer(draft)
    tokens, max_seqs = config.speculation_tokens, config.speculation_max_seqs
    return Speculation(proposer, tokens=tokens, max_seqs=max_seqs, now=now)


def _fit(request: Request, k: int, kv: KvCache, spare_blocks: int) -> tuple[int, int]:
    """(guesses that find room, blocks taken for them)."""
    table = request.table
    assert table is not None
    end = request.computed + 1 + k
    need = kv.blocks_for(end) - len(table.blocks)
    if need <= 0:
        return k, 0
    if need <= spare_blocks and kv.grow(table, end):
        return k, need
    return table.capacity - request.computed - 1, 0
