"""Who calls when: a scenario, a number of calls and a seed become a list of calls. Pure.

Arrivals are open: a call comes at its time, whatever became of those before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadtest.scenario import Arrival, Group, Scenario
from loadtest.words import WORDS, instructions
from voice_agent.errors import UsageError

WORD_REST_S = 20.0
"""So long after its call's planned end a word is not given again: a last turn may take its time."""
GREATEST_STEP_S = 1.7
"""Between two steady arrivals."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Seconds since the run began. word: of its session, None with answers of a model."""

    index: int
    group: Group
    start_s: float
    end_s: float
    seed: int
    word: str | None
    instructions: str


def arrivals(pattern: Arrival, n: int, seconds: float, rng: np.random.Generator) -> list[float]:
    """n moments, ascending, from 0 on. steady: within the first fifth; ramp: through the first
    half; burst: all at once."""
    if pattern == "burst" or n < 2:
        return [0.0] * n
    if pattern == "ramp":
        return [0.5 * seconds * i / (n - 1) for i in range(n)]
    step = min(GREATEST_STEP_S, 0.2 * seconds / n)
    jitter = rng.uniform(-0.3, 0.3, n) * step
    return sorted(max(0.0, i * step + float(jitter[i])) for i in range(n))


def sizes(scenario: Scenario, calls: int) -> list[int]:
    """Callers of each group: shares of `calls` by the largest remainder, and counts beside them."""
    exact = [(g.share or 0.0) * calls for g in scenario.callers]
    whole = [int(x + 1e-9) for x in exact]
    shared = [i for i, g in enumerate(scenario.callers) if g.share is not None]
    for i in sorted(shared, key=lambda i: whole[i] - exact[i])[: calls - sum(whole)]:
        whole[i] += 1
    return [g.count or n for g, n in zip(scenario.callers, whole, strict=True)]


def plan(
    scenario: Scenario,
    calls: int,
    seconds: float,
    seed: int,
    *,
    arrival: Arrival | None = None,
    scripted: bool,
) -> list[PlannedCall]:
    """In order of arrival. Raises UsageError VA531 when scripted answers lack words for all."""
    rng = np.random.default_rng(seed)
    slots: list[tuple[float, float, Group]] = []
    for group, n in zip(scenario.callers, sizes(scenario, calls), strict=True):
        first = group.arrive * seconds
        pattern = group.arrival or arrival or scenario.arrival
        for at in arrivals(pattern, n, seconds - first, rng):
            start = first + at
            while start < seconds:
                end = min(seconds, start + (group.call_s or seconds))
                slots.append((start, end, group))
                start = end + 0.5
    slots.sort(key=lambda slot: slot[0])
    words = Words() if scripted else None
    made = []
    for index, (start, end, group) in enumerate(slots):
        word = words.give(start, end) if words is not None else None
        salt = int(rng.integers(1 << 30))
        text = instructions(word, group.sentences, group.prompt_words, salt)
        made.append(PlannedCall(index, group, start, end, seed * 10_007 + index, word, text))
    return made


class Words:
    """Gives every call a word that no other live call has."""

    def __init__(self) -> None:
        self._free_at = dict.fromkeys(WORDS, 0.0)

    def give(self, start_s: float, end_s: float) -> str:
        """Raises UsageError VA531."""
        word = min(self._free_at, key=lambda w: self._free_at[w])
        if self._free_at[word] > start_s:
            raise UsageError(
                f"scripted answers tell {len(WORDS)} live calls apart and no more: fewer calls, or "
                "--answers model",
                code="VA531",
            )
        self._free_at[word] = end_s + WORD_REST_S
        return word
