"""One request as its caller sees it: an asynchronous iterator of deltas."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import UsageError
from engine.request import FinishReason, Output, TopLogprobs


@dataclass(frozen=True, slots=True)
class Delta:
    """What became known since the last delta.

    text: ready to show, may be empty. token_ids: generated ids, the end-of-turn id excluded.
    finish: set on the last delta only. logprobs: if asked for, one natural logarithm per id; top:
    the likeliest tokens in place of each id.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    logprobs: tuple[float, ...] = ()
    top: tuple[TopLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were found in the prefix cache."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole generation."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason


class Generation:
    """Iterate it on the event loop it was submitted from; all methods belong to that thread.

    Leaving the iteration by cancellation aborts the request, and so does dropping the object. The
    buffer is bounded by the request's `max_tokens`. `error` is set when `finish` is ERROR.
    """

    def __init__(
        self,
        request_id: int,
        n_prompt: int,
        loop: asyncio.AbstractEventLoop,
        post_abort: Callable[[int], None],
        post_deadline: Callable[[int, float], None],
    ) -> None:
        self.id = request_id
        self.finish: FinishReason | None = None
        self.error: Exception | None = None
        self.token_ids: list[int] = []
        """All ids so far, whether read or not; none after an abort."""
        self._n_prompt = n_prompt
        self._n_cached = 0
        self._loop = loop
        self._post_abort = post_abort
        self._post_deadline = post_deadline
        self._deltas: deque[Delta] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False  # the last delta was taken

    @property
    def usage(self) -> Usage:
        """Complete once `finish` is set."""
        return Usage(self._n_prompt, self._n_cached, len(self.token_ids))

    def committed(self, n_prompt: int) -> None:
        """The prompt, held open until now, is final."""
        self._n_prompt = n_prompt

    def abort(self) -> None:
        """Stop now: no text made so far or later is delivered any more. Idempotent."""
        if self._ended or self.finish is FinishReason.ABORTED:
            return
        self._deltas.clear()
        running = self.finish is None
        self._push(Delta("", (), FinishReason.ABORTED))
        if running:
            self._post_abort(self.id)

    def set_deadline(self, deadline_s: float) -> None:
        """When the caller's ear next needs sound, in seconds of the engine's clock."""
        if self.finish is None:
            self._post_deadline(self.id, deadline_s)

    async def collect(self) -> Completion:
        """Everything until the end. Raises the request's error, if it ended in one."""
        texts: list[str] = []
        ids: list[int] = []
        async for delta in self:
            texts.append(delta.text)
            ids.extend(delta.token_ids)
        if self.error is not None:
            raise self.error
        assert self.finish is not None
        return Completion("".join(texts), tuple(ids), self.finish)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        while not self._deltas:
            if self._ended:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise UsageError("a generation has one reader")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.abort()
                raise
            finally:
                self._waiter = None
        delta = self._deltas.popleft()
        self._ended = delta.finish is not None
        return delta

    async def aclose(self) -> None:
        """Abort unless finished; so that `contextlib.aclosing` works."""
        self.abort()

    def accept(self, output: Output) -> None:
        """One step's output; called by the engine's delivery on the event loop's thread."""
        if self.finish is not None:
            return  # aborted: stale output
        self._n_cached = output.cached_tokens
        self.token_ids.extend(output.token_ids)
        self.error = output.error
        self._push(Delta(output.text, output.token_ids, output.finish, output.logprobs, output.top))

    def _push(self, delta: Delta) -> None:
        self.finish = delta.finish
        self._deltas.append(delta)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class GenerationSink:
    """The engine's hold on a generation; weak, so that an abandoned one ends its request."""

    __slots__ = ("_generation", "_post_abort", "_request_id", "loop")

    def __init__(self, generation: Generation, post_abort: Callable[[int], None]) -> None:
        self.loop: asyncio.AbstractEventLoop = generation._loop
        self._generation = weakref.ref(generation)
        self._post_abort = post_abort
        self._request_id = generation.id

    def accept(self, output: Output) -> None:
        generation = self._generation()
        if generation is not None:
            generation.accept(output)
        elif output.finish is None:
            self._post_abort(self._request_id)
