"""What becomes of a step's results: tokens, text, and the ends of requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.counters import LoopCounters
from engine.errors import EngineError, InternalError
from engine.flight import Flight, Seat
from engine.inputs import Sampled
from engine.outbox import Outbox
from engine.request import FinishReason, Output, Request, State
from engine.roster import Roster

log = logging.getLogger(__name__)


class Reaper:
    """Applies results row by row, and is the one way in which a request ends."""

    def __init__(
        self,
        roster: Roster,
        outbox: Outbox,
        counters: LoopCounters,
        eos_ids: frozenset[int],
        on_finished: Callable[[Request], None],
    ) -> None:
        self.eos_ids = eos_ids
        self._roster = roster
        self._outbox = outbox
        self._counters = counters
        self._on_finished = on_finished

    def reap(self, flight: Flight, results: Sequence[Sampled | None], now: float) -> None:
        """Apply what a step made, one result per seat."""
        for seat, sampled in zip(flight.seats, results, strict=True):
            request = seat[0]
            if request.state is not State.FINISHED:  # else it comes too late
                self._take(seat, sampled, flight.guesses.get(request.id, ()), now)
        for request_id in flight.plan.guesses:
            spared = self._roster.requests.get(request_id)
            if spared is not None:
                self._roster.return_spare(spared)

    def _take(
        self, seat: Seat, sampled: Sampled | None, guess: tuple[int, ...], now: float
    ) -> None:
        """Apply one row's result; whatever goes wrong ends this request only.

        Who was preempted meanwhile has lost what was computed, and keeps the token that was chosen;
        if it runs again by now, that token is being chosen again.
        """
        request, table, n_tokens, place = seat
        try:
            if request.table is table:
                self._roster.advance(request, n_tokens)
            elif request.table is not None:
                return
            if sampled is not None:
                if place is None:
                    raise InternalError("a token came back from a row that asked for none")
                self._accept(request, sampled, place, now)
                if guess:
                    self._accept_guesses(request, sampled, guess, now)
            elif request.prefill_only and request.computed == request.known:
                self.end(request, FinishReason.STOP, now)
        except Exception as error:
            log.exception("request failed", extra={"request": request.id})
            self.end(request, FinishReason.ERROR, now, error=error)

    def _accept_guesses(
        self, request: Request, sampled: Sampled, guess: tuple[int, ...], now: float
    ) -> None:
        """Take the right guesses: those whose rows hold what was then chosen.

        What was computed beyond a wrong guess, or beyond the end, is neither cached nor counted:
        `computed` does not reach it, and later tokens overwrite it.
        """
        chosen, n_right = sampled.token, 0
        for guessed, after in zip(guess, sampled.beyond, strict=True):
            if guessed != chosen or request.state is State.FINISHED:
                break
            n_right += 1
            self._roster.advance(request, 1)
            self._accept(request, Sampled(after), request.known, now)
            chosen = after
        assert self._roster.speculation is not None
        self._roster.speculation.note(request, n_right, len(guess))

    def _accept(self, request: Request, sampled: Sampled, place: int, now: float) -> None:
        """The token at index `place` of the request's tokens is known."""
        params, token, text = request.params, sampled.token, request.text
        if text is None:
            raise InternalError("a token came for a prompt that is still open")
        if request.constraint is not None:
            request.constraint.check()
        ends = token in self.eos_ids and not params.ignore_eos
        if ends or token in params.stop_token_ids:
            self._counters.grammar_valid += ends and request.constraint is not None
            self.end(request, FinishReason.STOP, now, tail=text.finish())
            return
        piece = text.push(token)
        if place < request.known:
            request.tokens[place] = token
        else:
            request.tokens.append(token)
        self._counters.tokens += 1
        self._counters.note_output(request, piece, now)
        out = Output(piece, (token,), (), request.cached_tokens)
        if params.logprobs is not None and sampled.logprob is not None:
            out = replace(out, logprobs=(sampled.logprob,), top=(sampled.top,))
        if text.stopped:
            self.end(request, FinishReason.STOP, now, last=out)
        elif place + 1 - request.n_prompt >= request.max_new:
            self.end(request, FinishReason.LENGTH, now, tail=text.finish(), last=out)
        else:
            if request.constraint is not None:
                request.constraint.push(token)
            self._outbox.put(request.sink, out)

    def end(
        self,
        request: Request,
        reason: FinishReason,
        now: float,
        *,
        tail: str = "",
        last: Output | None = None,
        error: Exception | None = None,
    ) -> None:
        """End a request, once, and tell its reader."""
        request.error = error
        roster, counters = self._roster, self._counters
        keep = reason is not FinishReason.ERROR
        try:
            if not roster.finish(request, reason, now, keep=keep):
                return
        except Exception:  # our bug, and blocks may be lost; its reader must hear of the end
            counters.integrity_failures += 1
            log.exception("release failed", extra={"request": request.id})
        if roster.speculation is not None:
            roster.speculation.forget(request)
        counters.finished += 1
        counters.aborted += reason is FinishReason.ABORTED
        counters.failed += reason is FinishReason.ERROR
        counters.grammar_finished += (
            request.constraint is not None and reason is not FinishReason.ABORTED
        )
        if error is not None and not isinstance(error, EngineError):
            request.error = error = InternalError(f"{type(error).__name__}: {error}")
        out = last or Output("", (), (), request.cached_tokens)
        self._outbox.put(
            request.sink, replace(out, text=out.text + tail, finish=reason, error=error)
        )
        self._on_finished(request)
