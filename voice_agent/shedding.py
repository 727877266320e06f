"""What load stops, in one declared order, and when it may start again.

    early voice -> early thinking -> new calls wait or are refused -> partial transcripts are rarer
    -> replies are shorter (where the operator allows it)

Each step is taken at a predicted wait, as a share of the target. Steps are taken at once and given
back one at a time, after a calm well below what took them. Live callers are hurt last: a reply that
is being spoken is never dropped. Nothing here does any of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from .clock import Clock

CALM_S = 2.0
"""The queues stay short for so long before a step is taken back."""
SAMPLE_S = 0.1
BACK_AT = 0.5
"""Of the share that took a step, below which it is given back."""
STRETCH = 2.0
"""So many times as long are the intervals between partial transcripts then."""
BUSY, MOST_STRETCH = 0.5, 6.0
"""Share of their time from which on the recogniser, or the processors, have ever less of it for
partial transcripts; and how many times as long their intervals become at most."""
KEPT = 32
"""Changes that the operator's view shows."""


class Shed(IntEnum):
    """What load has stopped: this and all before it."""

    NOTHING = 0
    VOICE = 1
    LLM = 2
    CALLS = 3
    PARTIALS = 4
    REPLIES = 5


WORDS: Mapping[Shed, str] = MappingProxyType(
    {
        Shed.NOTHING: "nothing",
        Shed.VOICE: "early voice",
        Shed.LLM: "early thinking",
        Shed.CALLS: "new calls",
        Shed.PARTIALS: "frequent partial transcripts",
        Shed.REPLIES: "long replies",
    }
)
"""What the latest step has stopped, for people."""
AT: Mapping[Shed, float] = MappingProxyType(
    {
        Shed.VOICE: 0.5,
        Shed.LLM: 1.0,
        Shed.CALLS: 2.0,
        Shed.PARTIALS: 3.0,
        Shed.REPLIES: 4.0,
    }
)
"""Predicted wait as a share of the target at which each step is taken."""


def stretch(shed: Shed, busy: float = 0.0) -> float:
    """Of the interval between a caller's partial transcripts (never while our agent speaks).

    busy: share of its time that what makes them has been at work lately. They get what is free of
    it, before anybody's final or sound would wait for them.
    """
    shared = (1.0 - BUSY) / max(1e-9, 1.0 - busy)
    return max(STRETCH if shed >= Shed.PARTIALS else 1.0, min(MOST_STRETCH, shared))


@dataclass(frozen=True, slots=True)
class Change:
    """One step more or less. share: the predicted wait then, of the target."""

    at_s: float
    before: Shed
    after: Shed
    share: float


class Load:
    """How far load has come. wait_s: predicted wait of new work now.

    most: the last step that the operator allows.
    """

    def __init__(
        self,
        clock: Clock,
        target_s: float,
        wait_s: Callable[[], float],
        most: Shed = Shed.PARTIALS,
    ) -> None:
        self._clock = clock
        self._target_s = target_s
        self._wait_s = wait_s
        self._most = most
        self._shed = Shed.NOTHING
        self._sampled_s = float("-inf")
        self._busy_s = float("-inf")  # when the present step was last needed
        self.share = 0.0
        """The predicted wait when last looked at, of the target."""
        self.taken: Counter[Shed] = Counter()
        """How often each step was taken."""
        self.changes: deque[Change] = deque(maxlen=KEPT)

    @property
    def shed(self) -> Shed:
        now = self._clock.now()
        if now - self._sampled_s >= SAMPLE_S:
            self._sampled_s = now
            self.share = self._wait_s() / self._target_s
            self._step(now)
        return self._shed

    def _step(self, now: float) -> None:
        reached = [step for step, share in AT.items() if self.share >= share and step <= self._most]
        wanted = max(reached, default=Shed.NOTHING)
        if wanted > self._shed:
            for step in range(self._shed + 1, wanted + 1):
                self.taken[Shed(step)] += 1
            self._move(wanted, now)
        elif self._shed and self.share >= AT[self._shed] * BACK_AT:
            self._busy_s = now
        elif self._shed and now - self._busy_s >= CALM_S:
            self._move(Shed(self._shed - 1), now)

    def _move(self, shed: Shed, now: float) -> None:
        self.changes.append(Change(now, self._shed, shed, self.share))
        self._shed, self._busy_s = shed, now

    def gauges(self) -> dict[str, float]:
        names = {step: step.name.lower() for step in AT}
        return {
            "load_step": float(self.shed),
            "load_wait_share": self.share,
            **{f"load_{names[step]}_shed_total": float(self.taken[step]) for step in AT},
        }
