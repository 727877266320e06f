"""The records of planning: what a step does, and what led to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.inputs import Row
from engine.kvcache import Copy
from engine.request import Request


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`tokens`: request id -> tokens it advances by. `copies` come before the forward.

    `padding`: rows that are computed for nothing (static batching). `guesses`: request id -> tokens
    that may be guessed on top, where the table has room for them.
    """

    tokens: dict[int, int]
    copies: tuple[Copy, ...]
    limit_ms: float
    predicted_ms: float
    padding: tuple[Row, ...] = ()
    guesses: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counters:
    preemptions: int = 0
    missed_deadlines: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    peak_waiting: int = 0


@dataclass(slots=True)
class Survey:
    """What the running requests are about to do, in one look."""

    decode: list[Request]
    """Live requests that need one row for their next token."""
    others: list[Request]
    full: list[Request]
    """Those of `decode` whose next token needs another block."""
    tightest_s: float
    """When the first speaking call runs dry."""
    positions: int = 0
    """What the rows of `decode` attend to, all together."""
