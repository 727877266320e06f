"""The open requests: who waits, who runs, and what those who run hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.config import EngineConfig
from engine.kvcache import BlockTable, KvCache
from engine.pace import Pace
from engine.plan import Counters, StepPlan
from engine.request import FinishReason, Request, State
from engine.speculate.speculation import Speculation


class Roster:
    """Requests come, change and go here; a scheduler is a roster that plans. Engine thread only."""

    def __init__(
        self,
        config: EngineConfig,
        kv: KvCache,
        pace: Pace,
        speculation: Speculation | None = None,
    ) -> None:
        self.config = config
        self.kv = kv
        self.pace = pace
        self.speculation = speculation
        self.counters = Counters()
        self.requests: dict[int, Request] = {}
        self.failed: list[tuple[Request, Exception]] = []
        """Requests that `plan` found impossible; the loop ends them."""
        self._running: dict[int, Request] = {}
        self._waiting: dict[int, Request] = {}
        self._free_slots = list(reversed(range(config.max_num_seqs)))
        self._changes = 0  # counts whatever may let a waiting request in

    def plan(self, now: float) -> StepPlan:
        """Decide the next step. Changes request states and block tables, runs nothing."""
        raise NotImplementedError

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether a step could advance anybody; a held prompt that is computed waits for words."""
        return any(not request.idle for request in self.requests.values())

    def running(self) -> Iterable[Request]:
        return self._running.values()

    def tables(self) -> Iterator[BlockTable]:
        """Every open block table."""
        return (r.table for r in self._running.values() if r.table is not None)

    def slots(self) -> tuple[int, int]:
        """Token slots in open block tables, and those of them that hold a token."""
        slots = used = 0
        for request in self._running.values():
            assert request.table is not None
            slots += request.table.capacity
            used += request.computed
        return slots, used

    # requests come and change

    def add(self, request: Request, now: float) -> None:
        self.requests[request.id] = self._waiting[request.id] = request
        self._changes += 1
        self.counters.peak_waiting = max(self.counters.peak_waiting, len(self._waiting))
        self._look(request, now)

    def revise(self, request: Request, keep: int, more: Iterable[int], now: float) -> None:
        """A held prompt becomes its first `keep` tokens and `more`. What is cut isn't in flight."""
        self._changes += 1
        if request.idle:
            request.passes = 0  # it has waited for words, not for its turn
        keep = min(keep, request.known)
        del request.tokens[keep:]
        request.tokens.extend(more)
        request.n_prompt = request.known
        if request.table is None:
            self._look(request, now)
            return
        stands = min(keep, max(0, request.known - 1))
        if stands < request.launched:
            self._cut(request, request.table, stands)

    def release_hold(self, request: Request) -> None:
        """A held prompt is final: the next token may be drawn."""
        self._changes += 1
        request.held = False
        request.passes = 0
        if request.table is not None:
            self._count_prompt(request)

    def cut(self, request: Request, keep: int) -> None:
        """Forget the tokens from `keep` on and what was computed of them."""
        request.rewind()
        if request.table is not None:
            self._cut(request, request.table, keep)
        del request.tokens[keep:]

    def set_deadline(self, request_id: int, deadline_s: float) -> None:
        """The caller's playout moved the deadline; from now on the call counts as speaking."""
        request = self.requests.get(request_id)
        if request is not None:
            self._changes += request.state is not State.RUNNING
            request.deadline_s = deadline_s
            request.rebased = False
            request.speaking = request.n_output > 0

    # steps

    def advance(self, request: Request, n_tokens: int) -> None:
        """The step computed `n_tokens` more of the request; share the blocks it filled."""
        request.computed += n_tokens
        if request.launched < request.computed:  # a guess that was right
            request.launched = request.computed
        assert request.table is not None
        self.kv.commit(request.table, request.tokens, request.computed)

    def return_spare(self, request: Request) -> None:
        """Give back the blocks of guesses that came to nothing."""
        if request.table is not None:
            self.kv.shrink(request.table, request.computed)

    # requests go

    def finish(self, request: Request, reason: FinishReason, now: float, *, keep: bool) -> bool:
        """End a request and give its blocks back; False (and nothing done) if it had ended.

        With `keep` what it computed stays cached, and pinned if the request names a pin. What a
        step in flight still computes of it does not.
        """
        if request.state is State.FINISHED:
            return False
        self._changes += 1
        request.move(State.FINISHED)
        request.finish = reason
        for table in (self.requests, self._running, self._waiting):
            table.pop(request.id, None)
        request.rewind()
        computed = request.tokens[: request.computed]
        self._leave(request, keep)
        cut_short = request.prefill_only and request.remaining > 0
        if keep and computed and request.pin_key is not None and not cut_short:
            key, ttl_s = request.pin_key, request.pin_ttl_s
            self.kv.prefix.pin(key, request.scope, computed, ttl_s, now)
        return True

    # for whoever plans

    def _look(self, request: Request, now: float) -> None:
        limit = self._hit_limit(request)
        match = self.kv.prefix.match(request.scope, request.tokens, limit, now)
        request.expected_hit = match.n_tokens

    def _hit_limit(self, request: Request) -> int:
        """Tokens that may come from the cache: a row must be left that yields the next one."""
        return request.known - (not request.prefill_only)

    def _enter(self, request: Request, table: BlockTable, n_cached: int) -> None:
        """The request runs, on a table that starts with `n_cached` computed tokens."""
        request.table = table
        request.computed = request.launched = n_cached
        request.slot = self._free_slots.pop()
        request.move(State.RUNNING)
        self._changes += 1
        self._running[request.id] = self._waiting.pop(request.id)

    def _preempt(self, victim: Request) -> None:
        """Take all its blocks; it starts again from what the prefix cache still has by then.

        The token that a step in flight chooses for it stands. An open prompt that only waits has
        lost nothing that it would ask for again now, so it does not count.
        """
        self.counters.preemptions += not victim.idle
        victim.rewind()
        self._leave(victim, keep=True)
        victim.expected_hit, victim.computed, victim.launched = victim.computed, 0, 0
        victim.move(State.PREEMPTED)
        self._changes += 1
        self._waiting[victim.id] = self._running.pop(victim.id)

    def _leave(self, request: Request, keep: bool) -> None:
        if request.slot >= 0:
            self._free_slots.append(request.slot)
            request.slot = -1
        self._close(request, keep)

    def _close(self, request: Request, keep: bool) -> None:
        if request.table is not None:
            self.kv.close(request.table, request.tokens, request.computed, keep)
            request.table = None

    def _cut(self, request: Request, table: BlockTable, keep: int) -> None:
        request.computed = request.launched = self.kv.cut(table, request.computed, keep)

    def _count_prompt(self, request: Request) -> None:
        """What of the prompt need not be computed, once for each request."""
        if not request.counted:
            request.counted = True
            request.cached_tokens = request.launched
            self.counters.prompt_tokens += request.n_prompt
            self.counters.cached_tokens += request.launched
