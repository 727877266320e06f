"""Plans a step: which request advances by how many tokens.

One list of requests in urgency order, no phases. Each running decode row gets its token; prompt
chunks share the milliseconds that are left; a newcomer is admitted when the blocks that all
admitted requests may need at worst still fit the pool. While every decode row fits the step and
finds its block, only the others need an order, and a step's planning costs a glance at each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from engine.admission import Admission
from engine.budget import Calibration, CostModel, StepBudget
from engine.config import EngineConfig
from engine.errors import CapacityError
from engine.inputs import Row
from engine.kvcache import BlockTable, KvCache
from engine.plan import Counters, StepPlan, Survey
from engine.policy import POLICIES, Urgency, choose_victim, is_spare, rebased_deadline
from engine.request import FinishReason, Request, State
from engine.speculate.speculation import Speculation

_RECHECK = 16
"""Passes after which a newcomer that does not fit is looked at again though nothing changed."""


class Scheduler:
    """Owns the open requests and their block tables. Runs on the engine thread only."""

    def __init__(
        self,
        config: EngineConfig,
        kv: KvCache,
        cost: CostModel,
        speculation: Speculation | None = None,
    ) -> None:
        self.config = config
        self.kv = kv
        self.speculation = speculation
        self.counters = Counters()
        self.requests: dict[int, Request] = {}
        self.failed: list[tuple[Request, Exception]] = []
        """Requests that `plan` found impossible; the loop ends them."""
        self._policy = POLICIES[config.scheduling_policy]
        self._running: dict[int, Request] = {}
        self._waiting: dict[int, Request] = {}
        self._planned: dict[int, int] = {}
        self._order: list[Request] = []
        self._admission: Admission | None = None
        self._prefill_left = 0
        self._decode_left = 0
        self._blocked = False
        self._crowded = False
        self._changes = 0  # counts whatever may let a waiting request in
        self._stuck: tuple[int, int] | None = None  # the changes at which the first did not fit
        self._stuck_passes = 0
        self.use_cost(cost)

    def use_cost(self, cost: CostModel) -> None:
        """Plan with this fitted cost model from now on."""
        self._calibration = Calibration(cost)
        self._plan_with(cost)

    def weight(self, rows: Iterable[Row]) -> float:
        """What a step over these rows counts as, in tokens that attend to nothing."""
        cost = self.budget.cost
        return sum(cost.weight(len(row.token_ids), row.start) for row in rows)

    def note_step(self, n_tokens: float, measured_ms: float) -> None:
        """What a step that counts as `n_tokens` really took; corrects the cost model."""
        corrected = self._calibration.note(n_tokens, measured_ms)
        if corrected is not None:
            self._plan_with(corrected)

    def _plan_with(self, cost: CostModel) -> None:
        c = self.config
        self.budget = StepBudget(
            cost, c.max_step_ms, c.max_num_batched_tokens, c.min_prefill_tokens
        )
        self._urgency = Urgency(
            cost, c.max_step_ms, c.later_stages_s, c.piece_s, c.age_s, c.promote_passes
        )

    def floor_ms(self, n_tokens: float) -> float:
        """The best that warm-up measured for a step that counts as so many tokens."""
        return self._calibration.fitted.ms(n_tokens)

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

    # requests come, change and go

    def add(self, request: Request, now: float) -> None:
        self.requests[request.id] = self._waiting[request.id] = request
        self._changes += 1
        self.counters.peak_waiting = max(self.counters.peak_waiting, len(self._waiting))
        self._look(request, now)

    def _look(self, request: Request, now: float) -> None:
        limit = self._hit_limit(request)
        match = self.kv.prefix.match(request.scope, request.tokens, limit, now)
        request.expected_hit = match.n_tokens

    def _hit_limit(self, request: Request) -> int:
        """Tokens that may come from the cache: a row must be left that yields the next one."""
        return request.known - (not request.prefill_only)

    def revise(self, request: Request, keep: int, more: Iterable[int], now: float) -> None:
        """A held prompt becomes its first `keep` tokens and `more`."""
        self._changes += 1
        keep = min(keep, request.known)
        del request.tokens[keep:]
        request.tokens.extend(more)
        request.n_prompt = request.known
        if request.table is None:
            self._look(request, now)
            return
        stands = min(keep, max(0, request.known - 1))
        if stands < request.computed:
            request.computed = self.kv.cut(request.table, request.computed, stands)

    def release_hold(self, request: Request) -> None:
        """A held prompt is final: the next token may be drawn."""
        self._changes += 1
        request.held = False
        request.passes = 0
        if request.table is not None:
            self._count_prompt(request)

    def cut(self, request: Request, keep: int) -> None:
        """Forget the tokens from `keep` on and what was computed of them."""
        if request.table is not None:
            request.computed = self.kv.cut(request.table, request.computed, keep)
        del request.tokens[keep:]

    def set_deadline(self, request_id: int, deadline_s: float) -> None:
        """The caller's playout moved the deadline; from now on the call counts as speaking."""
        request = self.requests.get(request_id)
        if request is not None:
            self._changes += request.state is not State.RUNNING
            request.deadline_s = deadline_s
            request.rebased = False
            request.speaking = request.n_output > 0

    def finish(self, request: Request, reason: FinishReason, now: float, *, keep: bool) -> bool:
        """End a request and give its blocks back; False (and nothing done) if it had ended.

        With `keep` what it computed stays cached, and pinned if the request names a pin.
        """
        if request.state is State.FINISHED:
            return False
        self._changes += 1
        request.move(State.FINISHED)
        request.finish = reason
        for table in (self.requests, self._running, self._waiting):
            table.pop(request.id, None)
        computed = request.tokens[: request.computed]
        self._close(request, keep)
        cut_short = request.prefill_only and request.remaining > 0
        if keep and computed and request.pin_key is not None and not cut_short:
            key, ttl_s = request.pin_key, request.pin_ttl_s
            self.kv.prefix.pin(key, request.scope, computed, ttl_s, now)
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

    def return_spare(self, request: Request) -> None:
        """Give back the blocks of guesses that came to nothing."""
        if request.table is not None:
            self.kv.shrink(request.table, request.computed)

    # planning

    def plan(self, now: float) -> StepPlan:
        """Decide the next step. Changes request states and block tables, runs nothing."""
        self.kv.pins.expire(now)
        self._planned, self._order, self._admission, self._blocked = {}, [], None, False
        survey = self._survey(now)
        n_decode = len(survey.decode) + sum(1 for r in survey.others if r.remaining == 1)
        newcomers = self._newcomers(survey, now)
        limit_ms = self.config.idle_step_ms if not n_decode else self._limit_ms(survey, now)
        weight = n_decode + self.budget.cost.per_position * survey.positions
        self._prefill_left = self.budget.prefill_tokens(limit_ms, n_decode, weight)
        if self._all_decode(survey, n_decode, newcomers):
            candidates = survey.others + newcomers
        else:
            candidates = survey.decode + survey.others + newcomers
        self._plan_in_order(candidates, now)
        self._age()
        planned, self._planned, self._order = self._planned, {}, []
        guesses = self._guesses(planned, limit_ms)
        predicted = self.budget.cost.ms(sum(planned.values()) + sum(guesses.values()))
        return StepPlan(planned, self.kv.take_copies(), limit_ms, predicted, guesses=guesses)

    def _guesses(self, planned: dict[int, int], limit_ms: float) -> dict[int, int]:
        """What may be guessed with the time and the blocks that are left."""
        if self.speculation is None or not planned:
            return {}
        requests = [self._running[i] for i in planned]
        pool = self.kv.pool
        spare = 0 if self._waiting else pool.n_free + pool.n_cached - len(self._running)
        n_tokens = sum(planned.values())
        return self.speculation.plan(requests, n_tokens, self.budget, limit_ms, self.kv, spare)

    def _survey(self, now: float) -> Survey:
        decode: list[Request] = []
        others: list[Request] = []
        full: list[Request] = []
        tightest_s, positions = math.inf, 0
        soon_s = now + self._urgency.service_s(1)
        for request in self._running.values():
            done, table = request.computed, request.table
            assert table is not None
            if len(request.tokens) - done == 1 and not (request.held or request.background):
                decode.append(request)
                positions += done
                if done >= table.capacity:
                    full.append(request)
                if request.deadline_s < soon_s and not request.rebased:
                    self._rebase(request, now)
            elif not request.idle:
                others.append(request)
                self._rebase(request, now)
            if request.speaking and request.deadline_s < tightest_s:
                tightest_s = request.deadline_s
        return Survey(decode, others, full, tightest_s, positions)

    def _newcomers(self, survey: Survey, now: float) -> list[Request]:
        """The waiting requests, or none if nobody could enter."""
        for request in self._waiting.values():
            if not request.rebased:
                self._rebase(request, now)
        if self.n_running >= self.config.max_num_seqs:
            idle = self.n_running - len(survey.decode) - len(survey.others)
            if not idle and not any(is_spare(request) for request in survey.others):
                return []
        if self._stuck == self._state() and self._stuck_passes < _RECHECK:
            self._stuck_passes += 1
            return []
        return [request for request in self._waiting.values() if not request.idle]

    def _state(self) -> tuple[int, int]:
        """While it stays the same, who did not fit does not fit: all grow at the same pace."""
        return self._changes, len(self.kv.pins.shared)

    def _rebase(self, request: Request, now: float) -> None:
        c = self.config
        target_s = c.background_target_s if request.background else c.target_s
        deadline_s = rebased_deadline(request, now, target_s, self._urgency)
        if deadline_s is not None:
            request.deadline_s = deadline_s
            request.rebased = True
            self._changes += request.state is not State.RUNNING
            self.counters.missed_deadlines += 1

    def _limit_ms(self, survey: Survey, now: float) -> float:
        """The tightest slack shrinks a step, unless the policy is blind to deadlines."""
        if survey.tightest_s == math.inf or self.config.scheduling_policy != "deadline":
            return self.budget.limit_ms(None)
        return self.budget.limit_ms(survey.tightest_s - now)

    def _all_decode(self, survey: Survey, n_decode: int, newcomers: list[Request]) -> bool:
        """Plan every decode row if the step and the pool have room for all; else plan none.

        Room is also left for the prompts of this step, so that whoever is more urgent than some
        decode row is not kept from its blocks.
        """
        kv, others = self.kv, len(survey.others) + len(newcomers)
        reserve = self.config.min_prefill_tokens if others else 0
        self._decode_left = max(1, self.budget.most_tokens - reserve)
        self._crowded = n_decode > self._decode_left
        if self._crowded:
            share = self.budget.most_tokens // 4 if others else 0
            self._prefill_left = max(reserve, share)
            self._decode_left = max(1, self.budget.most_tokens - self._prefill_left)
            return False
        need = len(survey.full)
        if others:
            need += kv.blocks_for(self._prefill_left) + others
        if need > kv.pool.n_free + kv.pool.n_cached:
            return False
        self._decode_left -= len(survey.decode)
        planned = self._planned
        for request in survey.decode:
            planned[request.id] = 1
        for request in survey.full:
            assert request.table is not None
            if not kv.grow(request.table, request.computed + 1):
                del planned[request.id]  # blocks fenced by a step in flight are on their way
        return True

    def _plan_in_order(self, candidates: list[Request], now: float) -> None:
        key, urgency = self._policy, self._urgency
        self._order = sorted(candidates, key=lambda r: key(r, now, urgency))
        preempted_before = self.counters.preemptions
        for request in self._order:
            if request.state is State.RUNNING:
                self._plan_running(request)
            elif not self._blocked and self._prefill_left > 0:
                self._plan_waiting(request, now)
                # nobody else enters in a pass that took blocks away: the victim would bounce
            self._blocked |= self.counters.preemptions > preempted_before
        if self._crowded:  # what the prompts left over
            self._decode_left += self._prefill_left
            for request in self._order:
                left_out = request.state is State.RUNNING and request.id not in self._planned
                if left_out and request.remaining == 1:
                    self._plan_running(request)

    def _age(self) -> None:
        for requests in (self._running, self._waiting):
            for request in requests.values():
                if request.id in self._planned:
                    request.passes = 0
                else:
                    request.passes += 1

    def _plan_running(self, request: Request) -> None:
        n = request.remaining
        n = min(n, self._chunk(request.computed) if n > 1 else self._decode_left)
        if n <= 0 or not self._make_room(request, request.computed + n):
            return
        self._planned[request.id] = n
        if request.remaining > 1:
            self._take(n, request.computed)
        else:
            self._decode_left -= 1

    def _chunk(self, start: int) -> int:
        """Prompt tokens from position `start` on that the step has time for."""
        left = self._prefill_left
        return min(left, self.budget.cost.fitting(left, start)) if left > 0 else 0

    def _take(self, n_tokens: int, start: int) -> None:
        self._prefill_left -= math.ceil(self.budget.cost.weight(n_tokens, start))

    def _make_room(self, request: Request, n_tokens: int) -> bool:
        """Grow the request's table, taking from those behind it in order if need be."""
        table = request.table
        assert table is not None
        while not self.kv.grow(table, n_tokens):
            if self.kv.could_come(table, n_tokens):
                return False  # blocks fenced by a step in flight are on their way
            victim = self._victim(request)
            if victim is not None:
                self._preempt(victim)
            elif self._planned:
                return False
            elif not self.kv.pins.lapse_one():
                error = CapacityError("the KV cache is too small for this request even alone")
                self.failed.append((request, error))
                return False
        return True

    def _victim(self, request: Request) -> Request | None:
        """A held prompt that only waits gives way first, then the last behind `request`."""
        for other in self._running.values():
            if other is not request and other.idle:
                return other
        return choose_victim(self._order, request, self._planned)

    def _preempt(self, victim: Request) -> None:
        """Take all its blocks; it starts again from what the prefix cache still has by then."""
        self._close(victim, keep=True)
        victim.expected_hit, victim.computed = victim.computed, 0
        victim.move(State.PREEMPTED)
        self._changes += 1
        self._waiting[victim.id] = self._running.pop(victim.id)
        self._admission = None
        self.counters.preemptions += 1

    def _plan_waiting(self, request: Request, now: float) -> None:
        if self.n_running >= self.config.max_num_seqs and not self._displace(request):
            self._blocked = True
            return
        while not self._admissible(request, now):
            if self._displace(request):
                continue
            # only a pin can be in the way of a request that would run alone
            if self.n_running or not self.kv.pins.lapse_one():
                self._blocked = True
                if not self.n_running and not self.kv.pool.n_fenced:
                    error = CapacityError("the KV cache can never hold this request")
                    self.failed.append((request, error))
                elif self.n_running and not any(map(is_spare, self._running.values())):
                    self._stuck, self._stuck_passes = self._state(), 0
                return
        self._blocked = not self._admit(request, now)

    def _displace(self, request: Request) -> bool:
        """A live request may take the place of spare work that is not planned yet."""
        if is_spare(request):
            return False
        victim = self._victim(request)
        if victim is None or not is_spare(victim):
            return False
        self._preempt(victim)
        return True

    def _admissible(self, request: Request, now: float) -> bool:
        """Whether all admitted requests and this one fit the pool at their worst moment."""
        if self._admission is None:
            growth = self.config.admission_growth
            self._admission = Admission(self.kv, growth, self._running.values())
        limit = self._hit_limit(request)
        hit = self.kv.prefix.match(request.scope, request.tokens, limit, now).blocks
        return self._admission.fits(request, hit)

    def _admit(self, request: Request, now: float) -> bool:
        """Open the table on the cached prefix and plan the first chunk; False leaves no trace."""
        limit = self._hit_limit(request)
        for partial in (True, False):
            table, n_cached = self.kv.open(
                request.scope, request.tokens, limit, now, partial=partial
            )
            n = max(0, min(request.known - request.held - n_cached, self._chunk(n_cached)))
            if self.kv.grow(table, n_cached + n):
                break
            self.kv.close(table, request.tokens, 0, keep=False)
        else:
            return False
        request.table = table
        request.computed = n_cached
        request.move(State.RUNNING)
        self._changes += 1
        self._running[request.id] = self._waiting.pop(request.id)
        if self._admission is not None:
            self._admission.admit(request)
        if not request.held:
            self._count_prompt(request)
        self._planned[request.id] = n
        self._take(n, n_cached)
        return True

    def _count_prompt(self, request: Request) -> None:
        """What of the prompt need not be computed, once for each request."""
        if not request.counted:
            request.counted = True
            request.cached_tokens = request.computed
            self.counters.prompt_tokens += request.n_prompt
            self.counters.cached_tokens += request.computed
