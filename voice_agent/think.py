"""Text of a reply: a stream of deltas from a model, behind one small interface.

The engine in this process is the default (`EngineThinker`); `voice_agent.remote` is an engine
elsewhere, and `voice_agent.fallback` puts one behind another.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from engine.client import Engine, Generation, Session
from engine.errors import EngineError
from engine.sampling import SamplingParams
from engine.text.tools import OPEN

from .context import Prompt
from .end_of_utterance import EndModel
from .scope import CancelScope

log = logging.getLogger(__name__)

NEVER = -1e4
"""Added to a token's logit: it is not chosen."""

EMBEDDED = "embedded"
"""The name of the engine in this process, in configuration and traces."""


@dataclass(frozen=True, slots=True)
class Thought:
    """One delta. token_ids: none from another process. finish: the engine's reason on the last one,
    else None. fresh: another backend took over, what came before is to be forgotten."""

    text: str
    token_ids: tuple[int, ...]
    finish: str | None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class ThoughtUsage:
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """Prompt tokens given to a model before it is asked, and such tokens taken back again."""

    given: int = 0
    taken_back: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """Who answers. fallback: why it is not the first backend; empty if it is."""

    backend: str
    fallback: str = ""


class Thinking(Protocol):
    """A reply being generated. Iterating it to the end, closing the iterator, or cancelling its
    scope releases it."""

    def __aiter__(self) -> AsyncGenerator[Thought]: ...
    def set_deadline(self, deadline_s: float) -> None: ...
    def keep(self) -> None:
        """The text so far is being spoken: no `fresh` thought may follow."""
        ...

    @property
    def usage(self) -> ThoughtUsage:
        """So far; complete once the iteration has ended."""
        ...

    @property
    def source(self) -> Source: ...


class Thinker(Protocol):
    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> Thinking:
        """Generate a reply. The prompt stays cached for `call` until `forget`.

        A call has one reply at a time: the one before has ended or its scope is cancelled.
        """
        ...

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        """The call's next prompt begins with `ids`, as far as is known: they may be computed ahead.

        Whatever else is known of the call (words revised, a reply unheard) may be dropped. Never
        raises, generates nothing; not called while a reply is generated.
        """
        ...

    def forget(self, call: str) -> None:
        """The call is over: its history need not be kept. Idempotent."""
        ...

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None:
        """Before calls: an agent's prompt prefix is computed, and kept where that is possible.

        Raises what tells that no reply could be made.
        """
        ...

    async def close(self) -> None:
        """Release connections. Idempotent."""
        ...


@runtime_checkable
class KnowsEnds(Protocol):
    """A thinker whose model also tells whether a caller has said all they want to say."""

    async def end_of_utterance(
        self, prompt: Prompt, *, call: str, tenant: str, deadline_s: float
    ) -> float | None:
        """Log-odds that the last message of `prompt`, the caller's and still open, is whole; 0 is
        "even". None: it can't be told, or not in time. Raises nothing and keeps nothing beyond
        `call`."""
        ...


class EngineThinking:
    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        async with aclosing(self._generation):
            async for delta in self._generation:
                finish = delta.finish.value if delta.finish is not None else None
                yield Thought(delta.text, delta.token_ids, finish)
        if self._generation.error is not None:
            raise self._generation.error

    def set_deadline(self, deadline_s: float) -> None:
        self._generation.set_deadline(deadline_s)

    def keep(self) -> None:
        """Nothing else could take over."""

    @property
    def usage(self) -> ThoughtUsage:
        u = self._generation.usage
        return ThoughtUsage(u.prompt_tokens, u.cached_tokens, u.output_tokens)

    @property
    def source(self) -> Source:
        return Source(EMBEDDED)


class EngineThinker:
    """The in-process engine, with one session for each call.

    Raises engine.errors.UsageError / CapacityError from `think`.
    """

    def __init__(self, engine: Engine, ends: EndModel | None = None) -> None:
        """ends: of the same engine; None: it is not asked where utterances end."""
        self._engine = engine
        self._ends = ends
        self._sessions: dict[str, Session] = {}

    def _session(self, call: str, tenant: str) -> Session:
        if call not in self._sessions:
            self._sessions[call] = self._engine.session(tenant=tenant, call=call)
        return self._sessions[call]

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> EngineThinking:
        session = self._session(call, tenant)
        session.follow(prompt.ids)
        if prompt.tools and not prompt.may_call:
            sampling = self._without_calls(sampling)
        generation = session.commit(sampling, deadline_s=deadline_s)
        scope.on_cancel(generation.abort)
        return EngineThinking(generation)

    def _without_calls(self, sampling: SamplingParams) -> SamplingParams:
        """The tag that opens a call can't be chosen; where it is no token of the model's, nor can
        what the tag begins with."""
        barred = self._engine.tokenizer.encode(OPEN, allow_special=True)[0]
        return replace(sampling, logit_bias=(*sampling.logit_bias, (barred, NEVER)))

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        try:
            return Ahead(*self._session(call, tenant).follow(ids))
        except EngineError as error:  # full, or too long: the reply will tell
            log.debug("nothing is computed ahead: %s", error, extra={"call": call})
            return Ahead()

    async def end_of_utterance(
        self, prompt: Prompt, *, call: str, tenant: str, deadline_s: float
    ) -> float | None:
        """One step over the words that are not in the call's cached prompt yet."""
        if self._ends is None or call not in self._sessions:
            return None
        try:
            return await self._ends.log_odds(
                prompt.ids, tenant=tenant, call=call, deadline_s=deadline_s
            )
        except EngineError as error:  # full, or too long: the turn ends without it
            log.debug("no end of utterance: %s", error, extra={"call": call})
            return None

    def forget(self, call: str) -> None:
        session = self._sessions.pop(call, None)
        if session is not None:
            session.close()

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None:
        await self._engine.prefill(prefix.ids, tenant=tenant, pin_key=f"agent:{agent}")

    async def close(self) -> None:
        """The engine's owner closes it."""
