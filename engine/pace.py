"""How fast steps go here: fitted at warm-up, kept honest by what each step takes."""

from __future__ import annotations

from collections.abc import Iterable

from engine.budget import Calibration, CostModel, StepBudget
from engine.config import EngineConfig
from engine.inputs import Row
from engine.policy import Urgency


class Pace:
    """Owns the cost model, and what is judged with it: a step's `budget`, a request's `urgency`."""

    budget: StepBudget
    urgency: Urgency

    def __init__(self, config: EngineConfig, cost: CostModel) -> None:
        self._config = config
        self.use(cost)

    def use(self, cost: CostModel) -> None:
        """Plan with this fitted cost model from now on."""
        self._calibration = Calibration(cost)
        self._plan_with(cost)

    def note(self, n_tokens: float, measured_ms: float) -> None:
        """What a step that counts as `n_tokens` really took; corrects the cost model."""
        corrected = self._calibration.note(n_tokens, measured_ms)
        if corrected is not None:
            self._plan_with(corrected)

    def weight(self, rows: Iterable[Row]) -> float:
        """What a step over these rows counts as, in tokens that attend to nothing."""
        cost = self.budget.cost
        return sum(cost.weight(len(row.token_ids), row.start) for row in rows)

    def floor_ms(self, n_tokens: float) -> float:
        """The best that warm-up measured for a step that counts as so many tokens."""
        return self._calibration.fitted.ms(n_tokens)

    def _plan_with(self, cost: CostModel) -> None:
        c = self._config
        self.budget = StepBudget(
            cost, c.max_step_ms, c.max_num_batched_tokens, c.min_prefill_tokens
        )
        piece_s = c.piece_tokens * c.max_step_ms / 1000.0 + c.later_stages_s
        self.urgency = Urgency(
            cost, c.max_step_ms, c.later_stages_s, piece_s, c.age_s, c.promote_passes
        )
