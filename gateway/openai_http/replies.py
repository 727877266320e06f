"""One request's replies: submitted together, read as one stream, given up together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from engine.client import Delta, Engine, FinishReason, Generation
from engine.errors import EngineError
from engine.sampling import SamplingParams

from .errors import ApiError, of_engine


@dataclass(frozen=True, slots=True)
class Totals:
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    def body(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Replies:
    """`n` replies to each prompt; reply i belongs to prompt i // n. Use it as a context manager.

    Raises ApiError when the engine refuses one, or ends one in an error.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        tenant: str,
        live: bool,
    ) -> None:
        self._n = n
        self._all: list[Generation] = []
        try:
            for prompt in prompts:
                for i in range(n):
                    own = params if params.seed is None else replace(params, seed=params.seed + i)
                    self._all.append(engine.submit(prompt, own, tenant=tenant, background=not live))
        except EngineError as error:
            self.abort()
            raise of_engine(error) from None

    def __enter__(self) -> Replies:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """End what still runs."""
        for generation in self._all:
            generation.abort()

    @property
    def totals(self) -> Totals:
        """A prompt with several replies counts once; as cached what its first reply found."""
        usages = [generation.usage for generation in self._all]
        firsts = usages[:: self._n]
        return Totals(
            sum(u.prompt_tokens for u in firsts),
            sum(u.cached_tokens for u in firsts),
            sum(u.output_tokens for u in usages),
        )

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """(reply, delta) as they come, until all have ended."""
        if len(self._all) == 1:
            async for delta in self._all[0]:
                self._check(0, delta)
                yield 0, delta
            return
        waiting = {asyncio.ensure_future(_next(g)): i for i, g in enumerate(self._all)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    index, new = waiting.pop(task), task.result()
                    if new is None:
                        continue
                    self._check(index, new)
                    waiting[asyncio.ensure_future(_next(self._all[index]))] = index
                    yield index, new
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _check(self, index: int, delta: Delta) -> None:
        if delta.finish is FinishReason.ERROR:
            raise of_engine(self._all[index].error or RuntimeError("no reason given"))
        if delta.finish is FinishReason.ABORTED:
            raise ApiError(503, "The server is shutting down.", code="shutting_down")


async def _next(generation: Generation) -> Delta | None:
    return await anext(generation, None)
