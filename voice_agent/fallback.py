"""Two backends, one behind the other: who is asked first, and who takes over before a word is out.

The second one takes over until the reply's first clause has been cut (`keep`), so nobody hears a
change of mind. A backend that failed is asked second for a while (a circuit breaker), or every
caller would wait for it again in every turn.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from engine.errors import EngineError
from engine.sampling import SamplingParams

from .clock import Clock
from .context import Prompt
from .errors import InternalError, UsageError, VoiceAgentError
from .remote_wire import RemoteError
from .scope import CancelScope
from .think import Ahead, Source, Thinker, Thinking, Thought, ThoughtUsage

log = logging.getLogger(__name__)

Failures = (VoiceAgentError, EngineError)
NONE_YET = ThoughtUsage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Backend:
    """name: what traces call it."""

    name: str
    thinker: Thinker


class FallbackThinker:
    """Owns the order of one or two backends. Times are seconds of `clock`."""

    def __init__(
        self,
        first: Backend,
        second: Backend | None,
        clock: Clock,
        *,
        cooldown_s: float,
        probe_s: float,
    ) -> None:
        """cooldown_s: how long a failed first backend is asked second. probe_s: once that is over,
        how long others keep asking the second one while a single reply tries the first."""
        self._first = first
        self._second = second
        self._clock = clock
        self._cooldown_s = cooldown_s
        self._probe_s = probe_s
        self._down_until_s: float | None = None
        self._down_because = ""
        self.n_replies = 0
        self.n_failed = 0
        self.n_fallbacks = 0

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> FallbackThinking:
        def start(backend: Backend, due_s: float) -> Thinking:
            return backend.thinker.think(
                prompt, sampling, call=call, tenant=tenant, deadline_s=due_s, scope=scope
            )

        self.n_replies += 1
        return FallbackThinking(self, start, deadline_s, scope)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        """Who answers is decided when a reply is asked for."""
        return Ahead()

    def forget(self, call: str) -> None:
        for backend in self._backends:
            backend.thinker.forget(call)

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None:
        """Both backends, so that the second is warm when it is needed.

        Raises UsageError VA485 when neither answers.
        """
        problems: list[str] = []
        for backend in self._backends:
            try:
                await backend.thinker.prepare(prefix, agent=agent, tenant=tenant)
            except Failures as error:
                text = f"{error} {getattr(error, 'detail', '')}".strip()
                problems.append(text)
                log.warning("backend %s is not ready: %s", backend.name, text)
                self.failed(backend, error)
        if len(problems) == len(self._backends):
            raise UsageError("no language model answers: " + "; ".join(problems), code="VA485")

    async def close(self) -> None:
        for backend in self._backends:
            await backend.thinker.close()

    def gauges(self) -> dict[str, float]:
        """For /metrics. down: 1 while the first backend is asked second."""
        return {
            "llm_replies": float(self.n_replies),
            "llm_failed": float(self.n_failed),
            "llm_fallbacks": float(self.n_fallbacks),
            "llm_first_down": float(self._down_until_s is not None),
        }

    # ------------------------------------------------------------ the order

    @property
    def _backends(self) -> tuple[Backend, ...]:
        return (self._first,) if self._second is None else (self._first, self._second)

    def order(self) -> tuple[Sequence[Backend], str]:
        """(who is asked, in order; why it is not the first backend, or empty)."""
        now = self._clock.now()
        if self._second is None or self._down_until_s is None:
            return self._backends, ""
        if now >= self._down_until_s:
            self._down_until_s = now + self._probe_s
            return self._backends, ""
        return (self._second, self._first), f"resting after {self._down_because}"

    def failed(self, backend: Backend, error: Exception) -> None:
        """Count it; unless the request was at fault the first backend rests."""
        self.n_failed += 1
        if backend is self._first and not (isinstance(error, RemoteError) and error.of_request):
            self._down_until_s = self._clock.now() + self._cooldown_s
            self._down_because = brief(error)

    def answered(self, backend: Backend, *, fallback: bool) -> None:
        self.n_fallbacks += fallback
        if backend is self._first:
            self._down_until_s = None


def brief(error: Exception) -> str:
    """An error as a trace names it."""
    if isinstance(error, VoiceAgentError):
        return str(error)
    return f"{type(error).__name__}: {error}"


class FallbackThinking:
    """One reply from whichever backend answers."""

    def __init__(
        self,
        owner: FallbackThinker,
        start: Callable[[Backend, float], Thinking],
        deadline_s: float,
        scope: CancelScope,
    ) -> None:
        self._owner = owner
        self._start = start
        self._deadline_s = deadline_s
        self._scope = scope
        self._kept = False
        self._current: Thinking | None = None
        self._source = Source("")

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        """Raises the error of a backend that was alone, else InternalError VA486."""
        order, why = self._owner.order()
        problems: list[str] = []
        for n, backend in enumerate(order):
            self._source = Source(backend.name, "; ".join(filter(None, (why, *problems))))
            try:
                async with aclosing(self._thoughts(backend, fresh=n > 0)) as thoughts:
                    async for thought in thoughts:
                        yield thought
            except Failures as error:
                if self._scope.cancelled:
                    return
                self._owner.failed(backend, error)
                problems.append(brief(error))
                log.warning("backend %s failed: %s", backend.name, problems[-1])
                if self._kept or len(order) == 1:
                    raise
            else:
                return
        raise InternalError("no language model answers: " + "; ".join(problems), code="VA486")

    async def _thoughts(self, backend: Backend, *, fresh: bool) -> AsyncGenerator[Thought]:
        self._current = self._start(backend, self._deadline_s)
        async with aclosing(self._current.__aiter__()) as thoughts:
            first = True
            async for thought in thoughts:
                if first:
                    self._owner.answered(backend, fallback=bool(self._source.fallback))
                yield replace(thought, fresh=True) if first and fresh else thought
                first = False

    def set_deadline(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        if self._current is not None:
            self._current.set_deadline(deadline_s)

    def keep(self) -> None:
        self._kept = True

    @property
    def usage(self) -> ThoughtUsage:
        return self._current.usage if self._current is not None else NONE_YET

    @property
    def source(self) -> Source:
        return self._source
