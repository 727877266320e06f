"""Text of a reply: a stream of deltas from a model, behind one small interface.

The engine in this process is the default; a remote OpenAI-compatible endpoint could be another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.client import Engine, Generation
from engine.sampling import SamplingParams

from .scope import CancelScope


@dataclass(frozen=True, slots=True)
class Thought:
    """One delta. finish is the engine's reason on the last one, else None."""

    text: str
    token_ids: tuple[int, ...]
    finish: str | None


@dataclass(frozen=True, slots=True)
class ThoughtUsage:
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Thinking(Protocol):
    """A reply being generated. Iterating it to the end, or cancelling its scope, releases it."""

    def __aiter__(self) -> AsyncIterator[Thought]: ...
    def set_deadline(self, deadline_s: float) -> None: ...
    @property
    def usage(self) -> ThoughtUsage: ...


class Thinker(Protocol):
    def think(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> Thinking:
        """Generate from token ids. The prompt stays cached for `call` until `forget`."""
        ...

    def forget(self, call: str) -> None:
        """The call is over: its history need not be kept. Idempotent."""
        ...


class EngineThinking:
    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    async def __aiter__(self) -> AsyncIterator[Thought]:
        async for delta in self._generation:
            finish = delta.finish.value if delta.finish is not None else None
            yield Thought(delta.text, delta.token_ids, finish)

    def set_deadline(self, deadline_s: float) -> None:
        self._generation.set_deadline(deadline_s)

    @property
    def usage(self) -> ThoughtUsage:
        u = self._generation.usage
        return ThoughtUsage(u.prompt_tokens, u.cached_tokens, u.output_tokens)


class EngineThinker:
    """The in-process engine. Raises engine.errors.UsageError / CapacityError from `think`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def think(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> EngineThinking:
        generation = self._engine.submit(
            prompt, sampling, tenant=tenant, deadline_s=deadline_s, pin_key=f"call:{call}"
        )
        scope.on_cancel(generation.abort)
        return EngineThinking(generation)

    def forget(self, call: str) -> None:
        self._engine.unpin(f"call:{call}")
