"""What was asked of the models then, looked up by what is asked of them now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from engine.errors import EngineError
from voice_agent.errors import CapacityError, InternalError, UsageError
from voice_agent.stt.jobs import SupersededError
from voice_agent.tools.base import ToolFailed

from .tape import EndTake, Recorded, ScoreTake, SttTake, ThoughtTake, ToolTake, VoiceTake
from .virtual_loop import VirtualLoop

SAME_S = 0.05  # a question this close to its time of then is the same one
ERRORS: dict[str, type[Exception]] = {
    e.__name__: e
    for e in (CapacityError, EngineError, InternalError, SupersededError, ToolFailed, UsageError)
}

T = TypeVar("T", SttTake, ScoreTake, EndTake, ThoughtTake, VoiceTake, ToolTake)


class Answers:
    """One replay's clock and answers. guessed: questions that were not asked then."""

    def __init__(self, recorded: Recorded, loop: VirtualLoop) -> None:
        self.recorded, self.tape, self.loop = recorded, recorded.tape, loop
        self.zero_s = loop.now()
        self.n_frames = 0  # of the caller, so far
        self.guessed = 0
        self._used: set[int] = set()

    def now(self) -> float:
        return self.loop.now() - self.zero_s

    async def until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self.now()))

    def pick(
        self, takes: Sequence[T], same: Callable[[T], bool], near: Callable[[T], float]
    ) -> T | None:
        """The take that was asked for: an unused one, else a used one, else the nearest in reach.

        near: a distance; infinite: not at all like it.
        """
        asked = self.now()
        exact = [t for t in takes if same(t)]
        fresh = [t for t in exact if id(t) not in self._used] or exact
        if fresh:
            take = min(fresh, key=lambda t: abs(t.asked_s - asked))
            self._used.add(id(take))
            return take
        self.guessed += 1
        close = min(takes, key=near, default=None)
        return None if close is None or near(close) == float("inf") else close

    async def due(self, asked_s: float, take_asked_s: float, at_s: float) -> None:
        """Wait until something that came at `at_s` then is due now."""
        shift = asked_s - take_asked_s
        await self.until(at_s + (shift if abs(shift) > SAME_S else 0.0))


def raised(error: str) -> Exception:
    """An exception like the one that `record.fault_of` wrote down."""
    head, _, message = error.partition(": ")
    code, _, name = head.rpartition(" ")
    kind = ERRORS.get(name, InternalError)
    if code and issubclass(kind, InternalError | CapacityError | UsageError):
        return kind(message, code=code)
    return kind(message)
