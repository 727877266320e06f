"""One request: what is known of it, what is computed, and the states it may go through.

    WAITING --> RUNNING <--> PREEMPTED
        \\-----------\\------------\\--> FINISHED

There is no prefill or decode phase: a request has `known` tokens and `computed` ones, a step
advances `computed`, and when the two meet the step's last row yields the next token. A `held`
request's prompt may still change: all but its last token is computed ahead, and no token is drawn
before it is committed.

Between a step's launch and its reading `launched` is ahead of `computed`, and the tokens end in
`PENDING` ones, a place for each token that is being chosen:

    tokens      t t t t t t P P         P: PENDING
    computed    ---------->|            read: may be cached
    launched    ------------->|         the next row starts here
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Protocol

from engine.counts import TokenCounts
from engine.errors import InternalError
from engine.grammar.constraint import Constraint
from engine.inputs import PENDING
from engine.kvcache import BlockTable
from engine.prefix import Scope
from engine.sampling import SamplingParams
from engine.speculate.gain import HOPE

_NEVER = -1e9
"""A bias no logit overcomes."""


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


LEGAL: frozenset[tuple[State, State]] = frozenset(
    {
        (State.WAITING, State.RUNNING),
        (State.WAITING, State.FINISHED),
        (State.RUNNING, State.PREEMPTED),
        (State.RUNNING, State.FINISHED),
        (State.PREEMPTED, State.RUNNING),
        (State.PREEMPTED, State.FINISHED),
    }
)


TopLogprobs = tuple[tuple[int, float], ...]
"""The likeliest tokens of one position and their log probabilities, best first."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Output:
    """What one step made for one request; crosses from the engine thread to the event loop."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int
    finish: FinishReason | None = None
    error: Exception | None = None
    top: tuple[TopLogprobs, ...] = ()


class Sink(Protocol):
    """Where a request's outputs go; `accept` runs on the thread of `loop`."""

    loop: asyncio.AbstractEventLoop

    def accept(self, output: Output) -> None: ...


class TextOut(Protocol):
    """Turns token ids into deliverable text, holding back what may still change."""

    @property
    def stopped(self) -> bool:
        """A stop string was found; the text before it has been returned."""
        ...

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class Request:
    """Owned by the engine thread once it is in the inbox."""

    __slots__ = (
        "arrival_s", "background", "cached_tokens", "computed", "constraint", "counted", "counts",
        "deadline_s", "endless", "error", "expected_hit", "finish", "guess_rate", "heard_from",
        "held", "id", "last_out_s", "launched", "max_new", "n_prompt", "params", "passes",
        "pin_key", "pin_ttl_s", "prefill_only", "priority", "rebased", "scope", "seed", "sink",
        "slot", "speaking", "state", "table", "text", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        request_id: int,
        prompt: Iterable[int],
        params: SamplingParams,
        *,
        seed: int,
        max_new: int,
        arrival_s: float,
        deadline_s: float,
        tenant: str = "default",
        call: str | None = None,
        priority: int = 0,
        background: bool = False,
        prefill_only: bool = False,
        held: bool = False,
        pin_key: str | None = None,
        pin_ttl_s: float = 600.0,
        sink: Sink | None = None,
    ) -> None:
        self.id = request_id
        self.tokens: list[int] = list(prompt)
        self.n_prompt = len(self.tokens)
        self.params = params
        self.endless: SamplingParams | None = None
        """Settings for the first `min_tokens` tokens: those that end a reply are ruled out."""
        self.seed = seed
        self.max_new = max_new
        self.arrival_s = arrival_s
        self.deadline_s = deadline_s
        self.scope = Scope(tenant, call)
        self.priority = priority
        self.background = background
        self.prefill_only = prefill_only
        self.held = held
        self.pin_key = pin_key
        self.pin_ttl_s = pin_ttl_s
        self.sink = sink
        self.text: TextOut | None = None
        self.counts = TokenCounts() if params.penalised else None
        self.constraint: Constraint | None = None
        """The compiled grammar; set before the request reaches the engine thread."""
        self.state = State.WAITING
        self.computed = 0
        self.launched = 0
        self.slot = -1
        """Its place in the runner's table of chosen tokens, while it runs."""
        self.cached_tokens = 0
        self.counted = False
        """Its prompt is in the totals: it may be admitted more than once."""
        self.expected_hit = 0
        """Tokens the prefix cache held when last looked at; an estimate while not running."""
        self.table: BlockTable | None = None
        self.passes = 0
        self.speaking = False
        self.rebased = False
        self.last_out_s: float | None = None
        """When its latest token left; None before the first."""
        self.guess_rate = HOPE
        """Moving average of right guesses, where speculation is on."""
        self.heard_from = False
        """Some text has left."""
        self.finish: FinishReason | None = None
        self.error: Exception | None = None

    @property
    def known(self) -> int:
        """Tokens known: prompt and output, those that a step in flight chooses included."""
        return len(self.tokens)

    @property
    def n_output(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def remaining(self) -> int:
        """Tokens known but not launched; 1 while decoding. The last of a held prompt waits."""
        return len(self.tokens) - self.launched - self.held

    @property
    def to_compute(self) -> int:
        """Tokens that stand between now and the next one, cached ones not counted."""
        done = self.launched if self.state is State.RUNNING else self.expected_hit
        return len(self.tokens) - done - self.held

    @property
    def idle(self) -> bool:
        """Held, and all that may be computed is."""
        return self.held and self.to_compute <= 0

    @property
    def reads_back(self) -> bool:
        """Whether the choice of a token needs the one before it on the host."""
        p = self.params
        return p.penalised or p.logprobs is not None or self.constraint is not None

    @property
    def sampling(self) -> SamplingParams:
        """The settings for the next token."""
        if self.endless is not None and self.n_output < self.params.min_tokens:
            return self.endless
        return self.params

    def commit(
        self, params: SamplingParams, seed: int, max_new: int, now: float, deadline_s: float
    ) -> None:
        """What a held prompt is to be answered with; it counts as arrived now."""
        self.params = params
        self.seed = seed
        self.max_new = max_new
        self.counts = TokenCounts() if params.penalised else None
        self.arrival_s = now
        self.deadline_s = deadline_s

    def rewind(self) -> None:
        """Forget what a step in flight computes and chooses: its results come too late."""
        self.launched = self.computed
        while self.tokens and self.tokens[-1] == PENDING:
            self.tokens.pop()

    def rule_out(self, ends: Iterable[int]) -> None:
        """Keep `ends` from being chosen among the first `min_tokens` tokens."""
        if self.params.min_tokens:
            bias = dict(self.params.logit_bias) | dict.fromkeys(ends, _NEVER)
            self.endless = replace(self.params, logit_bias=tuple(bias.items()))

    def move(self, state: State) -> None:
        """Change state; an illegal move raises `InternalError`."""
        if (self.state, state) not in LEGAL:
            raise InternalError(f"request {self.id}: {self.state.value} -> {state.value}")
        self.state = state
