"""Plans a step: which request advances by how many tokens.

One list of requests in urgency order, no phases. Each running decode row gets its token; prompt
chunks share the milliseconds that are left; a newcomer is admitted when the blocks that all
admitted requests may need at worst still fit the pool. While every decode row fits the step and
finds its block, only the others need an order, and a step's planning costs a glance at each row.
By deadline a step is so short that the speaking call with the least sound could be in a whole
piece's worth of them in time; what it has no room for are rows of calls with seconds of sound.

With a step in flight the next one is planned as if that one were read: its rows start where the
last ones end. Blocks that it fences are on their way, and so may be those of whoever ends in it:
nobody who runs fails for want of a block before it has been read.
"""

from __future__ import annotations

import math

from engine.admission import Admission
from engine.budget import CostModel
from engine.config import EngineConfig
from engine.errors import CapacityError
from engine.kvcache import KvCache
from engine.pace import Pace
from engine.plan import StepPlan, Survey
from engine.policy import POLICIES, choose_victim, dry_by, is_spare, rebased_deadline
from engine.request import Request, State
from engine.roster import Roster
from engine.speculate.speculation import Speculation

_RECHECK = 16
"""Passes after which a newcomer that does not fit is looked at again though nothing changed."""


class Scheduler(Roster):
    """Continuous batching."""

    def __init__(
        self,
        config: EngineConfig,
        kv: KvCache,
        cost: CostModel,
        speculation: Speculation | None = None,
    ) -> None:
        super().__init__(config, kv, Pace(config, cost), speculation)
        self._policy = POLICIES[config.scheduling_policy]
        self._planned: dict[int, int] = {}
        self._order: list[Request] = []
        self._admission: Admission | None = None
        self._prefill_left = 0.0
        self._decode_left = 0.0
        self._blocked = False
        self._crowded = False
        self._stuck: tuple[int, int] | None = None  # the changes at which the first did not fit
        self._stuck_passes = 0

    def plan(self, now: float) -> StepPlan:
        budget = self.pace.budget
        self.kv.pins.expire(now)
        self._planned, self._order, self._admission, self._blocked = {}, [], None, False
        survey = self._survey(now)
        n_decode = len(survey.decode) + sum(1 for r in survey.others if r.remaining == 1)
        newcomers = self._newcomers(survey, now)
        limit_ms = self.config.idle_step_ms if not n_decode else self._limit_ms(survey, now)
        weight = n_decode + budget.cost.per_position * survey.positions
        self._prefill_left = budget.prefill_tokens(limit_ms, n_decode, weight)
        rows = self._plan_rows(survey, weight, newcomers, limit_ms, now)
        self._plan_in_order(rows + survey.others + newcomers, now)
        self._age()
        planned, self._planned, self._order = self._planned, {}, []
        guesses = self._guesses(planned, limit_ms)
        predicted = budget.cost.ms(sum(planned.values()) + sum(guesses.values()))
        return StepPlan(planned, self.kv.take_copies(), limit_ms, predicted, guesses=guesses)

    def _guesses(self, planned: dict[int, int], limit_ms: float) -> dict[int, int]:
        """What may be guessed with the time and the blocks that are left."""
        if self.speculation is None or not planned:
            return {}
        requests = [self._running[i] for i in planned]
        pool = self.kv.pool
        spare = 0 if self._waiting else pool.n_free + pool.n_cached - len(self._running)
        n_tokens = sum(planned.values())
        return self.speculation.plan(requests, n_tokens, self.pace.budget, limit_ms, self.kv, spare)

    def _survey(self, now: float) -> Survey:
        decode: list[Request] = []
        others: list[Request] = []
        full: list[Request] = []
        tightest_s, positions = math.inf, 0
        soon_s = now + self.pace.urgency.service_s(1)
        for request in self._running.values():
            done, table = request.launched, request.table
            assert table is not None
            if len(request.tokens) - done == 1 and not (request.held or request.background):
                decode.append(request)
                positions += done
                if done >= table.capacity:
                    full.append(request)
                if request.deadline_s < soon_s and not request.rebased:
                    self._rebase(request, now)
            elif request.remaining > 0:
                others.append(request)
                self._rebase(request, now)
            if request.speaking and request.deadline_s < tightest_s and not request.rebased:
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
        deadline_s = rebased_deadline(request, now, target_s, self.pace.urgency)
        if deadline_s is not None:
            request.deadline_s = deadline_s
            request.rebased = True
            self._changes += request.state is not State.RUNNING
            self.counters.missed_deadlines += 1

    def _limit_ms(self, survey: Survey, now: float) -> float:
        """The tightest slack shrinks a step, unless the policy is blind to deadlines.

        What the next piece of sound needs may take as many steps as it has tokens.
        """
        c, budget = self.config, self.pace.budget
        if survey.tightest_s == math.inf or c.scheduling_policy != "deadline":
            return budget.limit_ms(None)
        return budget.limit_ms((survey.tightest_s - now - c.later_stages_s) / c.piece_tokens)

    def _plan_rows(
        self, survey: Survey, weight: float, newcomers: list[Request], limit_ms: float, now: float
    ) -> list[Request]:
        """Plan the decode rows that need no order; returns those that do.

        That is none while the step and the pool have room for all, and for the prompts of this
        step, so that whoever is more urgent than some row is not kept from its blocks. In a step
        without room for all, prompts and rows share it in order; by deadline the rows of calls
        with little or no sound are in it before, though it gets longer.
        """
        kv, budget, rows = self.kv, self.pace.budget, survey.decode
        others = len(survey.others) + len(newcomers)
        reserve = self.config.min_prefill_tokens if others else 0
        self._decode_left = max(1.0, budget.tokens(limit_ms) - reserve)
        self._crowded = weight > self._decode_left
        if self._crowded:
            rows = self._short_of_sound(survey, now)
            n_tokens = sum(budget.cost.weight(1, request.launched) for request in rows)
            if n_tokens > budget.most_tokens - reserve:
                rows, n_tokens = [], 0.0  # too many: in order, as far as the longest step goes
                self._decode_left = max(1.0, budget.most_tokens - reserve)
            whole = self._decode_left
            self._decode_left = max(0.0, whole - n_tokens)
            self._prefill_left = self._decode_left + reserve
        else:
            whole = self._decode_left
            self._decode_left -= len(rows) + budget.cost.per_position * survey.positions
        need = len(survey.full)
        if others:
            need += kv.blocks_for(int(self._prefill_left)) + others
        if need > kv.pool.n_free + kv.pool.n_cached:
            self._decode_left = whole  # nobody is in the step yet
            if self._crowded:
                self._prefill_left = whole + reserve
            return survey.decode
        planned = self._planned
        for request in rows:
            planned[request.id] = 1
        for request in survey.full:
            assert request.table is not None
            if request.id in planned and not kv.grow(request.table, request.launched + 1):
                del planned[request.id]  # blocks fenced by a step in flight are on their way
        if not self._crowded:
            return []
        taken = {request.id for request in rows}
        return [request for request in survey.decode if request.id not in taken]

    def _short_of_sound(self, survey: Survey, now: float) -> list[Request]:
        """Rows of live requests whose caller hears nothing yet, or soon nothing more."""
        if self.config.scheduling_policy != "deadline":
            return []
        by_s = dry_by(1, now, self.pace.urgency)
        return [r for r in survey.decode if not r.speaking or r.deadline_s < by_s]

    def _plan_in_order(self, candidates: list[Request], now: float) -> None:
        key, urgency = self._policy, self.pace.urgency
        self._order = sorted(candidates, key=lambda r: key(r, now, urgency))
        preempted_before = self.counters.preemptions
        for request in self._order:
            if request.state is State.RUNNING:
                self._plan_running(request)
            elif not self._blocked and self._prefill_left >= 1.0:
                self._plan_waiting(request, now)
                # nobody else enters in a pass that took blocks away: the victim would bounce
            self._blocked |= self.counters.preemptions > preempted_before
        if self._crowded:  # what the prompts left over
            self._decode_left = self._prefill_left
            for request in self._order:
                if self._decode_left < 1.0:
                    break
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
        n = min(n, self._chunk(request.launched) if n > 1 else int(self._decode_left >= 1.0))
        if n <= 0 or not self._make_room(request, request.launched + n):
            return
        self._planned[request.id] = n
        if request.remaining > 1:
            self._take(n, request.launched)
            return
        weight = self.pace.budget.cost.weight(1, request.launched)
        self._decode_left -= weight
        if self._crowded:
            self._prefill_left -= weight

    def _chunk(self, start: int) -> int:
        """Prompt tokens from position `start` on that the step has time for."""
        left = self._prefill_left
        if left < 1.0:
            return 0
        return min(int(left), self.pace.budget.cost.fitting(left, start))

    def _take(self, n_tokens: int, start: int) -> None:
        weight = self.pace.budget.cost.weight(n_tokens, start)
        self._prefill_left -= weight
        if self._crowded:
            self._decode_left -= weight

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
            elif self._planned or self.kv.pool.in_flight:
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
        super()._preempt(victim)
        self._admission = None

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
        """Take the place of work that is not planned yet: anybody that of an open prompt which only
        waits, a live request that of any spare work."""
        victim = self._victim(request)
        if victim is None or not (victim.idle or (is_spare(victim) and not is_spare(request))):
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
        self._enter(request, table, n_cached)
        if self._admission is not None:
            self._admission.admit(request)
        if not request.held:
            self._count_prompt(request)
        self._planned[request.id] = n
        self._take(n, n_cached)
        return True
