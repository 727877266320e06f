"""How soon a caller would be answered, with the calls there are and with one more. Pure.

Each stage has work that waits now, the service that a turn needs of it, and the share of its time
that is taken on average. With one more caller that share grows by one caller's part; what a turn
then waits for on average is that of a queue whose service times vary little (M/D/1).
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


@dataclass(frozen=True, slots=True)
class StageLoad:
    """wait_s: predicted for work asked for now. service_s: of one turn's work up to the first
    sound. busy: share of the stage's time taken lately, 0 to 1."""

    name: str
    wait_s: float
    service_s: float
    busy: float

    def with_more(self, factor: float) -> float:
        """The share with `factor` times as many callers."""
        return self.busy * factor

    def answer_s(self, factor: float = 1.0) -> float:
        """Predicted wait and service with `factor` times as many callers; infinite: no end."""
        busy = self.with_more(factor)
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
        factor = (self.calls + more) / self.calls if self.calls else 1.0
        stages_s = sum(stage.answer_s(factor) for stage in self.stages)
        return self.silence_s + self.lag_s + stages_s

    def full(self, more: int = 1) -> StageLoad | None:
        """The stage that would have no time left, if there is one."""
        if not self.calls:
            return None
        factor = (self.calls + more) / self.calls
        fullest = max(self.stages, key=lambda stage: stage.busy, default=None)
        return fullest if fullest is not None and fullest.with_more(factor) > FULL else None

    @property
    def memory_left(self) -> bool:
        """Whether another call's KV blocks can probably be had."""
        return self.memory is None or self.memory[0] >= self.memory[1]


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
