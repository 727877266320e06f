"""Text of a reply: a stream of deltas from a model, behind one small interface.

The engine in this process is the default (`EngineThinker`); `voice_agent.remote` is an engine
elsewhere, and `voice_agent.fallback` puts one behind another.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from engine.client import Engine, Generation
from engine.sampling import SamplingParams

from .context import Prompt
from .scope import CancelScope

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
        """Generate a reply. The prompt stays cached for `call` until `forget`."""
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
    """The in-process engine. Raises engine.errors.UsageError / CapacityError from `think`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
        generation = self._engine.submit(
            prompt.ids,
            sampling,
            tenant=tenant,
            call=call,
            deadline_s=deadline_s,
            pin_key=f"call:{call}",
        )
        scope.on_cancel(generation.abort)
        return EngineThinking(generation)

    def forget(self, call: str) -> None:
        self._engine.forget(call)

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None:
        await self._engine.prefill(prefix.ids, tenant=tenant, pin_key=f"agent:{agent}")

    async def close(self) -> None:
        """The engine's owner closes it."""
