"""Who goes first: pure functions of a request and the time."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from engine.budget import CostModel
from engine.request import Request, State

Key = tuple[int, float, int]
"""(rank, seconds, request id); smaller goes first. Reversed, it chooses the victim."""

RANK_DRY, RANK_LIVE, RANK_BACKGROUND = 0, 1, 2
_HELD = 1 << 32
"""Later than any priority."""


@dataclass(frozen=True, slots=True)
class Urgency:
    """The constants of the ordering; see `EngineConfig` for their meaning."""

    cost: CostModel
    max_step_ms: float
    later_stages_s: float
    piece_s: float
    age_s: float
    promote_passes: int
    _service_s: dict[int, float] = field(default_factory=dict)

    def service_s(self, n_tokens: int) -> float:
        """Predicted seconds to compute `n_tokens` and to pass the later stages."""
        known = self._service_s.get(n_tokens)
        if known is None:
            engine_ms = self.cost.total_ms(n_tokens, self.max_step_ms)
            known = self._service_s[n_tokens] = engine_ms / 1000.0 + self.later_stages_s
        return known


Policy = Callable[[Request, float, Urgency], Key]


def is_spare(request: Request) -> bool:
    """Work that only fills idle time: background requests, and prompts that may still change."""
    return request.background or request.held


def rebased_deadline(
    request: Request, now: float, target_s: float, urgency: Urgency
) -> float | None:
    """A new deadline for a request whose own is missed, or can be met no more; None otherwise.

    Without this, a long prompt that is late in any case would go before all that are still in time.
    """
    needs_s = 0.0 if request.speaking else urgency.service_s(request.to_compute)
    if request.held or request.rebased or now + needs_s <= request.deadline_s:
        return None
    return now + needs_s + target_s


def deadline_key(request: Request, now: float, urgency: Urgency) -> Key:
    """Earliest deadline first, minus the predicted service of this and the later stages.

    A speaking call about to run dry goes before any first clause; background work comes after
    live work, until it has been passed over often enough.
    """
    start_by = request.deadline_s - urgency.service_s(request.to_compute)
    aged = start_by - urgency.age_s * request.passes
    if is_spare(request) and request.passes < urgency.promote_passes:
        return RANK_BACKGROUND, aged, request.id
    if request.speaking and request.deadline_s - now < urgency.piece_s:
        return RANK_DRY, aged, request.id
    return RANK_LIVE, aged, request.id


def fcfs_key(request: Request, now: float, urgency: Urgency) -> Key:
    """First come, first served: the baseline. A prompt that may still change has not come yet."""
    return RANK_BACKGROUND if request.held else RANK_LIVE, request.arrival_s, request.id


def priority_key(request: Request, now: float, urgency: Urgency) -> Key:
    """The caller's own order: a lower `priority` goes first, equals by arrival."""
    return request.priority + (_HELD if request.held else 0), request.arrival_s, request.id


POLICIES: dict[str, Policy] = {
    "deadline": deadline_key,
    "fcfs": fcfs_key,
    "priority": priority_key,
}


def choose_victim(
    order: Sequence[Request], after: Request, planned: Container[int]
) -> Request | None:
    """The last running request behind `after` in `order` that this step does not plan yet."""
    for request in reversed(order):
        if request is after:
            return None
        if request.state is State.RUNNING and request.id not in planned:
            return request
    return None
