"""Plans a step: which request advances by how many tokens.

One list of requests in urgency order, no phases. Each running decode row gets its token; prompt
chunks share the milliseconds that are left; a newcomer is admitted when the blocks that all
admitted requests may need at worst still fit the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.budget import Calibration, CostModel, StepBudget
from engine.config import EngineConfig
from engine.errors import CapacityError
from engine.headroom import Demand, future_peak
from engine.kvcache import Copy, KvCache
from engine.policy import POLICIES, Urgency, choose_victim, rebased_deadline
from engine.request import FinishReason, Request, State


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`tokens`: request id -> tokens it advances by. `copies` come before the forward."""

    tokens: dict[int, int]
    copies: tuple[Copy, ...]
    limit_ms: float
    predicted_ms: float


@dataclass(slots=True)
class Counters:
    preemptions: int = 0
    missed_deadlines: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Scheduler:
    """Owns the open requests and their block tables. Runs on the engine thread only."""

    def __init__(self, config: EngineConfig, kv: KvCache, cost: CostModel) -> None:
        self.config = config
        self.kv = kv
        self.counters = Counters()
        self.requests: dict[int, Request] = {}
        self.failed: list[tuple[Request, Exception]] = []
        """Requests that `plan` found impossible; the loop ends them."""
        self._policy = POLICIES[config.policy]
        self._n_running = 0
        self._planned: dict[int, int] = {}
        self._order: list[Request] = []
        self._prefill_left = 0
        self._blocked = False
        self.use_cost(cost)

    def use_cost(self, cost: CostModel) -> None:
        """Plan with this fitted cost model from now on."""
        self._calibration = Calibration(cost)
        self._plan_with(cost)

    def note_step(self, n_tokens: int, measured_ms: float) -> None:
        """What a step of `n_tokens` really took; corrects the cost model now and then."""
        corrected = self._calibration.note(n_tokens, measured_ms)
        if corrected is not None:
            self._plan_with(corrected)

    def _plan_with(self, cost: CostModel) -> None:
        c = self.config
        self.budget = StepBudget(cost, c.max_step_ms, c.max_step_tokens, c.min_prefill_tokens)
        self._urgency = Urgency(
            cost, c.max_step_ms, c.later_stages_s, c.piece_s, c.age_s, c.promote_passes
        )

    @property
    def n_running(self) -> int:
        return self._n_running

    @property
    def n_waiting(self) -> int:
        return len(self.requests) - self._n_running

    def running(self) -> Iterator[Request]:
        return (r for r in self.requests.values() if r.state is State.RUNNING)

    # requests come and go

    def add(self, request: Request, now: float) -> None:
        self.requests[request.id] = request
        if self.config.prefix_cache:
            limit = self._hit_limit(request)
            match = self.kv.radix.match(request.tenant, request.tokens, limit, now)
            request.expected_hit = match.n_tokens

    def _hit_limit(self, request: Request) -> int:
        """Tokens that may come from the cache: a row must be left that yields the next one."""
        return request.known - (not request.prefill_only)

    def set_deadline(self, request_id: int, deadline_s: float) -> None:
        """The caller's playout moved the deadline; from now on the call counts as speaking."""
        request = self.requests.get(request_id)
        if request is not None:
            request.deadline_s = deadline_s
            request.rebased = False
            request.speaking = request.n_output > 0

    def finish(self, request: Request, reason: FinishReason, now: float, *, keep: bool) -> bool:
        """End a request and give its blocks back; False (and nothing done) if it had ended.

        With `keep` what it computed stays cached, and pinned if the request names a pin.
        """
        if request.state is State.FINISHED:
            return False
        self._n_running -= request.state is State.RUNNING
        request.move(State.FINISHED)
        request.finish = reason
        del self.requests[request.id]
        computed = request.tokens[: request.computed]
        self._close(request, keep)
        cut_short = request.prefill_only and request.remaining > 0
        if keep and computed and request.pin_key is not None and not cut_short:
            self.kv.radix.pin(request.pin_key, request.tenant, computed, request.pin_ttl_s, now)
        return True

    def _close(self, request: Request, keep: bool) -> None:
        if request.table is not None:
            self.kv.close(request.table, request.tokens, request.computed, keep)
            request.table = None

    def advance(self, request: Request, n_tokens: int) -> None:
        """The step computed `n_tokens` more of the request; share the blocks it filled."""
        request.computed += n_tokens
        assert request.table is not None
        self.kv.commit(request.table, request.tokens, request.computed)

    # planning

    def plan(self, now: float) -> StepPlan:
        """Decide the next step. Changes request states and block tables, runs nothing."""
        self.kv.radix.expire(now)
        self._rebase(now)
        key, urgency = self._policy, self._urgency
        self._order = sorted(self.requests.values(), key=lambda r: key(r, now, urgency))
        n_decode = sum(1 for r in self.running() if r.remaining == 1)
        limit_ms = self.config.idle_step_ms
        if n_decode:
            limit_ms = self.budget.limit_ms(self._tightest_slack_s(now))
        self._prefill_left = self.budget.prefill_tokens(limit_ms, n_decode)
        self._planned, self._blocked = {}, False
        preempted_before = self.counters.preemptions
        for request in self._order:
            if request.state is State.RUNNING:
                self._plan_running(request)
            elif not self._blocked and self._prefill_left > 0:
                self._plan_waiting(request, now)
                # nobody else enters in a pass that took blocks away: the victim would bounce
            self._blocked |= self.counters.preemptions > preempted_before
        for request in self._order:
            request.passes = 0 if request.id in self._planned else request.passes + 1
        planned, self._planned, self._order = self._planned, {}, []
        predicted = self.budget.cost.ms(sum(planned.values()))
        return StepPlan(planned, self.kv.take_copies(), limit_ms, predicted)

    def _rebase(self, now: float) -> None:
        c = self.config
        for request in self.requests.values():
            target_s = c.background_target_s if request.background else c.target_s
            deadline_s = rebased_deadline(request, now, target_s, self._urgency)
            if deadline_s is not None:
                request.deadline_s = deadline_s
                request.rebased = True
                self.counters.missed_deadlines += 1

    def _tightest_slack_s(self, now: float) -> float | None:
        slacks = [r.deadline_s - now for r in self.running() if r.speaking]
        return min(slacks, default=None)

    def _plan_running(self, request: Request) -> None:
        n = request.remaining
        if n > 1:
            n = min(n, self._prefill_left)
        if n <= 0 or not self._make_room(request, request.computed + n):
            return
        self._planned[request.id] = n
        if request.remaining > 1:
            self._prefill_left -= n

    def _make_room(self, request: Request, n_tokens: int) -> bool:
        """Grow the request's table, taking from those behind it in order if need be."""
        table = request.table
        assert table is not None
        while not self.kv.grow(table, n_tokens):
            if self.kv.could_come(table, n_tokens):
                return False  # blocks fenced by a step in flight are on their way
            victim = choose_victim(self._order, request, self._planned)
            if victim is not None:
                self._preempt(victim)
            elif self._planned:
                return False
            elif not self.kv.radix.lapse_one():
                error = CapacityError("the KV cache is too small for this request even alone")
                self.failed.append((request, error))
                return False
        return True

    def _preempt(self, victim: Request) -> None:
        """Take all its blocks; it starts again from what the prefix cache still has by then."""
        self._close(victim, keep=True)
        victim.expected_hit, victim.computed = victim.computed, 0
        victim.move(State.PREEMPTED)
        self._n_running -= 1
        self.counters.preemptions += 1

    def _plan_waiting(self, request: Request, now: float) -> None:
        if self._n_running >= self.config.max_batch and not self._displace(request):
            self._blocked = True
            return
        while not self._admissible(request, now):
            # only a pin can be in the way of a request that would run alone
            if self._n_running or not self.kv.radix.lapse_one():
                self._blocked = True
                if not self._n_running and not self.kv.pool.n_fenced:
                    error = CapacityError("the KV cache can never hold this request")
                    self.failed.append((request, error))
                return
        self._blocked = not self._admit(request, now)

    def _displace(self, request: Request) -> bool:
        """A live request may take the slot of a background one that is not planned yet."""
        if request.background:
            return False
        victim = choose_victim(self._order, request, self._planned)
        if victim is None or not victim.background:
            return False
        self._preempt(victim)
        return True

    def _admissible(self, request: Request, now: float) -> bool:
        """Whether all admitted requests and this one fit the pool at their worst moment."""
        limit = self._hit_limit(request)
        hit: tuple[int, ...] = ()
        if self.config.prefix_cache:
            hit = self.kv.radix.match(request.tenant, request.tokens, limit, now).blocks
        shared = set(self.kv.radix.pinned())
        shared.update(hit)
        demands = [Demand(request.known, self._to_come(request), len(hit))]
        for other in self.running():
            assert other.table is not None
            shared.update(other.table.blocks[: other.table.n_shared])
            demands.append(Demand(other.known, self._to_come(other), other.table.n_shared))
        return future_peak(len(shared), demands, self.kv.block_size) <= self.kv.pool.n_total

    def _to_come(self, request: Request) -> int:
        """Tokens the request is expected to add to the known ones, within the model's length."""
        if request.prefill_only:
            return 0
        left = request.max_new - request.n_output
        return int(left * self.config.admission_growth)

    def _admit(self, request: Request, now: float) -> bool:
        """Open the table on the cached prefix and plan the first chunk; False leaves no trace."""
        limit = self._hit_limit(request)
        for partial in (True, False):
            table, n_cached = self.kv.open(
                request.tenant, request.tokens, limit, now, partial=partial
            )
            n = min(request.known - n_cached, self._prefill_left)
            if self.kv.grow(table, n_cached + n):
                break
            self.kv.close(table, request.tokens, 0, keep=False)
        else:
            return False
        first = request.state is State.WAITING
        request.table = table
        request.computed = n_cached
        request.move(State.RUNNING)
        self._n_running += 1
        if first:
            request.cached_tokens = n_cached
            self.counters.prompt_tokens += request.n_prompt
            self.counters.cached_tokens += n_cached
        self._planned[request.id] = n
        self._prefill_left -= n
        return True
