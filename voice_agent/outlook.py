"""How soon a caller would be answered, with the calls there are and with one more. Pure.

Each stage has work that waits now, the service that a turn needs of it, the share of its time that
was taken lately, and the share that one caller usually takes. A caller who has only just come has
loaded nothing yet, so each counts with that usual share from the moment they are let in: what is
taken is the larger of what was measured and what the callers there are will take. What a turn then
waits for on average is that of a queue whose service times vary little (M/D/1).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

FULL = 0.95
"""A stage with more of its time taken than this has no room for another caller."""
WINDOW_S = 30.0
"""Over which a stage's share is taken: replies are made in bursts."""
EVERY_S = 1.0
FEWEST = 0.5
"""Callers that memory is divided by at least: the first one's first seconds say little."""
PRIOR_S, MEMORY_S = 240.0, 2400.0
"""Seconds of callers that an expected share is worth, and over which a learnt one fades: 20 and 200
turns."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """wait_s: predicted for work asked for now. service_s: of one turn's work up to the first
    sound. busy: share of the stage's time taken lately, 0 to 1. each: that one caller usually
    takes. most: share past which it has no room."""

    name: str
    wait_s: float
    service_s: float
    busy: float
    each: float = 0.0
    most: float = FULL

    def share(self, calls: int, more: int = 0) -> float:
        """Predicted, of so many callers and `more`."""
        return max(self.busy, calls * self.each) + more * self.each

    def answer_s(self, calls: int, more: int = 0) -> float:
        """Predicted wait and service with so many callers; infinite: no end."""
        busy = self.share(calls, more)
        if busy >= 1.0:
            return math.inf
        queue_s = self.service_s * busy / (2.0 * (1.0 - busy))
        return max(self.wait_s, queue_s) + self.service_s


@dataclass(frozen=True, slots=True)
class Outlook:
    """calls: live ones. lag_s: how late the event loop is. silence_s: that ends a turn.

    memory: KV blocks that another call could have, and those that it will probably need; None
    without an engine in this process.
    """

    calls: int
    stages: tuple[StageLoad, ...] = ()
    lag_s: float = 0.0
    silence_s: float = 0.0
    memory: tuple[int, int] | None = None

    def answer_s(self, more: int = 0) -> float:
        """Predicted from the end of speech to the first sound, with `more` callers more."""
        stages_s = sum(stage.answer_s(self.calls, more) for stage in self.stages)
        return self.silence_s + self.lag_s + stages_s

    def full(self, more: int = 1) -> StageLoad | None:
        """The stage that would have no time left, if there is one: the one furthest past its
        limit."""
        if not self.calls:
            return None
        over = {stage: stage.share(self.calls, more) / stage.most for stage in self.stages}
        fullest = max(over, key=lambda stage: over[stage], default=None)
        return fullest if fullest is not None and over[fullest] > 1.0 else None

    @property
    def memory_left(self) -> bool:
        """Whether another call's KV blocks can probably be had."""
        return self.memory is None or self.memory[0] >= self.memory[1]


def memory_for(calls: int, usual: float, held: int, total: int) -> tuple[int, int]:
    """(blocks left, blocks that one call needs), each call counted with what one usually holds,
    those who have only just come included."""
    each = math.ceil(held / max(FEWEST, usual)) if calls else 0
    return total - max(held, calls * each), each


class Each:
    """The share of a stage's time that one caller usually takes: expected, then learnt."""

    def __init__(self) -> None:
        self._work_s = self._call_s = 0.0

    def note(self, work_s: float, call_s: float) -> None:
        """Work done in a while, and the callers' seconds in it."""
        keep = math.exp(-call_s / MEMORY_S)
        self._work_s = keep * self._work_s + work_s
        self._call_s = keep * self._call_s + call_s

    def share(self, expected: float | None) -> float:
        """expected: by the service times known of the stage; None: nothing is known."""
        prior_s = 0.0 if expected is None else PRIOR_S
        of_s = prior_s + self._call_s
        return (prior_s * (expected or 0.0) + self._work_s) / of_s if of_s else 0.0


class Average:
    """Of a number over `WINDOW_S`, noted about once a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, now_s: float, value: float) -> None:
        self._seen.append((now_s, value))
        while self._seen[0][0] < now_s - WINDOW_S:
            self._seen.popleft()

    @property
    def mean(self) -> float:
        return sum(value for _, value in self._seen) / len(self._seen) if self._seen else 0.0

    def before(self, seconds: float) -> float:
        """What was noted so many seconds before the last; 0 before the first."""
        if not self._seen:
            return 0.0
        at_s = self._seen[-1][0] - seconds
        return next((value for seen_s, value in reversed(self._seen) if seen_s <= at_s), 0.0)


class Share:
    """Of a stage's time that is taken: from a running total of its work, over `WINDOW_S`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, now_s: float, work_s: float) -> float:
        """work_s: done since the start by all workers, divided by their number."""
        seen = self._seen
        if not seen or now_s - seen[-1][0] >= EVERY_S:
            seen.append((now_s, work_s))
        while len(seen) > 1 and now_s - seen[1][0] >= WINDOW_S:
            seen.popleft()
        since_s, before_s = seen[0]
        return min(1.0, max(0.0, (work_s - before_s) / max(now_s - since_s, WINDOW_S / 3)))
