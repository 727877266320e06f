"""What a step costs, and how many prompt tokens fit into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_MIN_PER_TOKEN_MS = 1e-4
_SHORTEST = 6.0
"""So many times its fixed cost takes a step that is short for somebody's sake, at least: most of
it is rows. Shorter ones make so much less that soon everybody is short of sound."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicted milliseconds of a step over `n` tokens: base_ms + per_token_ms * n.

    A token that attends to p positions counts as 1 + per_position * p tokens.
    """

    base_ms: float
    per_token_ms: float
    per_position: float = 0.0

    def ms(self, n_tokens: float) -> float:
        return self.base_ms + self.per_token_ms * n_tokens if n_tokens > 0 else 0.0

    def scaled(self, factor: float) -> CostModel:
        return CostModel(self.base_ms * factor, self.per_token_ms * factor, self.per_position)

    def weight(self, n_tokens: int, start: int) -> float:
        """What consecutive tokens from position `start` on count as."""
        return n_tokens * (1.0 + self.per_position * (start + n_tokens / 2))

    def fitting(self, weight: float, start: int) -> int:
        """How many tokens from position `start` on count as at most `weight`; at least one."""
        each, half = 1.0 + self.per_position * start, self.per_position / 2
        if half * weight < 1e-9 * each:
            return max(1, int(weight / each))
        return max(1, int((math.sqrt(each * each + 4.0 * half * weight) - each) / (2.0 * half)))

    def tokens_within(self, ms: float) -> int:
        return max(0, int((ms - self.base_ms) / self.per_token_ms))

    def total_ms(self, n_tokens: int, max_step_ms: float) -> float:
        """Milliseconds to compute `n_tokens` in as many steps as `max_step_ms` asks for."""
        if n_tokens <= 0:
            return 0.0
        chunk = max(1, self.tokens_within(max_step_ms))
        n_steps = -(-n_tokens // chunk)
        return self.base_ms * n_steps + self.per_token_ms * n_tokens


def fit(samples: Sequence[tuple[int, float]]) -> CostModel:
    """Least squares of relative error over (tokens, milliseconds); never negative.

    Weighted by 1/ms, so that a 10 ms decode step counts as much as a 500 ms prompt.
    """
    if not samples:
        raise ValueError("a cost model needs at least one measured step")
    sw = sx = sy = sxx = sxy = 0.0
    for n_tokens, ms in samples:
        weight = 1.0 / max(ms, 1e-6) ** 2
        sw += weight
        sx += weight * n_tokens
        sy += weight * ms
        sxx += weight * n_tokens * n_tokens
        sxy += weight * n_tokens * ms
    spread = sw * sxx - sx * sx
    slope = (sw * sxy - sx * sy) / spread if spread > 1e-12 * sw * sxx else 0.0
    if slope <= 0.0:
        return CostModel(sy / sw, _MIN_PER_TOKEN_MS)
    base = (sy - slope * sx) / sw
    if base < 0.0:
        base, slope = 0.0, sxy / sxx
    return CostModel(base, max(slope, _MIN_PER_TOKEN_MS))


class Calibration:
    """Keeps a cost model honest while the machine's load changes.

    Every `WINDOW` steps the fitted model is scaled by the median of measured / predicted, within
    `LOW`..`HIGH` of the fit, so that one stalled step or a disturbed warm-up does not decide.
    """

    WINDOW = 32
    LOW, HIGH = 0.1, 4.0

    def __init__(self, fitted: CostModel) -> None:
        self.fitted = fitted
        self._ratios: list[float] = []

    def note(self, n_tokens: float, measured_ms: float) -> CostModel | None:
        """One step's time; a model to plan with from now on, when it is time for one."""
        predicted = self.fitted.ms(n_tokens)
        if predicted <= 0.0 or measured_ms <= 0.0:
            return None
        self._ratios.append(measured_ms / predicted)
        if len(self._ratios) < self.WINDOW:
            return None
        ratio, self._ratios = median(self._ratios), []
        return self.fitted.scaled(min(self.HIGH, max(self.LOW, ratio)))


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The limits of one step, and the cost model they are judged with."""

    cost: CostModel
    max_step_ms: float
    max_num_batched_tokens: int
    min_prefill_tokens: int

    def limit_ms(self, slack_s: float | None) -> float:
        """A step's time: the maximum, shrunk to the tightest slack that any call has for it."""
        if slack_s is None:
            return self.max_step_ms
        return min(self.max_step_ms, max(_SHORTEST * self.cost.base_ms, slack_s * 1000.0))

    def tokens(self, limit_ms: float) -> int:
        """Tokens of a step of `limit_ms`, or of twice its fixed cost where that is more.

        Below that a step spends more on its weights than on its rows, and all get slower.
        """
        cost = self.cost
        fit = max(1, cost.tokens_within(limit_ms), int(cost.base_ms / cost.per_token_ms))
        return min(fit, self.max_num_batched_tokens)

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest step."""
        return self.tokens(self.max_step_ms)

    def prefill_tokens(self, limit_ms: float, n_decode: int, weight: float | None = None) -> int:
        """Prompt tokens that fit beside `n_decode` decode rows; at least `min_prefill_tokens`.

        weight: what the decode rows count as (see `CostModel.weight`), their number by default.
        """
        fit_ms = self.cost.tokens_within(limit_ms) - int(n_decode if weight is None else weight)
        room = self.max_num_batched_tokens - n_decode
        return max(0, min(room, max(fit_ms, self.min_prefill_tokens)))
