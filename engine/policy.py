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
    """From a speaking call's next token to its next piece of sound, in the longest steps."""
    age_s: float
    promote_passes: int
    _compute_s: dict[int, float] = field(default_factory=dict)

    def compute_s(self, n_tokens: int) -> float:
        """Predicted seconds to compute `n_tokens`."""
        known = self._compute_s.get(n_tokens)
        if known is None:
            known = self.cost.total_ms(n_tokens, self.max_step_ms) / 1000.0
            self._compute_s[n_tokens] = known
        return known

    def service_s(self, n_tokens: int) -> float:
        """Predicted seconds to compute `n_tokens` and to pass the later stages."""
        return self.compute_s(n_tokens) + self.later_stages_s


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


def dry_by(n_tokens: int, now: float, urgency: Urgency) -> float:
    """A speaking call whose sound ends before this has none left when its next piece is made, with
    `n_tokens` between now and its next token."""
    return now + urgency.piece_s + urgency.compute_s(n_tokens)


def deadline_key(request: Request, now: float, urgency: Urgency) -> Key:
    """Earliest deadline first; a request yields to those who come while it would be computed.

    All wait for what is computed before them, so of two that arrive together the shorter goes
    first, and a long one waits no longer for shorter ones than it takes itself. What the later
    stages need is the same for all. A speaking call about to run dry goes before any first clause;
    background work comes after live work, until it has been passed over often enough.
    """
    n = request.to_compute
    aged = request.deadline_s + urgency.compute_s(n) - urgency.age_s * request.passes
    if is_spare(request) and request.passes < urgency.promote_passes:
        return RANK_BACKGROUND, aged, request.id
    if request.speaking and request.deadline_s < dry_by(n, now, urgency):
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
