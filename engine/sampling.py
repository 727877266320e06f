"""A request's sampling settings. How they are applied: engine.choice."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import UsageError
from engine.grammar.spec import Grammar

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """A request's sampling settings, checked on construction (UsageError names the bad one).

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. repetition_penalty divides the
    logits of every token seen (prompt and output; CTRL, arXiv 1909.05858); presence_penalty and
    frequency_penalty subtract for tokens of the output only. seed None: the engine draws one.
    logprobs: None tells none, 0 those of the chosen tokens, n also those of the n likeliest; all
    under the model, before any setting. grammar: what the reply must look like.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            if not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name} must be a finite number")
        _check(0.0 <= self.temperature <= 5.0, "temperature must be within 0 and 5")
        _check(self.top_k >= 0, "top_k must be 0 (off) or more")
        _check(0.0 < self.top_p <= 1.0, "top_p must be within (0, 1]")
        _check(0.0 <= self.min_p <= 1.0, "min_p must be within 0 and 1")
        _check(0.0 < self.repetition_penalty <= 10.0, "repetition_penalty must be within (0, 10]")
        _check(-2.0 <= self.presence_penalty <= 2.0, "presence_penalty must be within -2 and 2")
        _check(-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty must be within -2 and 2")
        _check(self.max_tokens >= 1, "max_tokens must be at least 1")
        _check(
            0 <= self.min_tokens <= self.max_tokens, "min_tokens must be within 0 and max_tokens"
        )
        _check(len(self.stop) <= 16, "at most 16 stop strings are allowed")
        _check(all(self.stop), "a stop string must not be empty")
        _check(
            all(t >= 0 and math.isfinite(b) for t, b in self.logit_bias),
            "logit_bias must map token ids to finite numbers",
        )
        _check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
            f"logprobs must be within 0 and {MAX_LOGPROBS}",
        )
        _check(
            self.grammar is None or not self.ignore_eos,
            "ignore_eos can't be used with a grammar: its end is the grammar's",
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """True when the choice depends on the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def shaped(self) -> bool:
        """True when the model's logits are changed before the choice."""
        return self.penalised or bool(self.logit_bias)


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise UsageError(message)
