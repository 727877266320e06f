"""Who may enter now: a free line, a share for each owner, and an answer in time for one more.

Judged and counted at once: one thread (the event loop) and no await between make it atomic.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from voice_agent.clock import Clock, MonotonicClock
from voice_agent.errors import CapacityError
from voice_agent.outlook import Outlook
from voice_agent.room import Lack
from voice_agent.shedding import Shed

RETRY_AFTER_S = 10
MOST_RETRY_S = 120
USUAL_CALL_S = 120.0
"""A call's length before any has ended."""
KEPT = 32
"""Decisions that the operator's view shows."""
OWNER: ContextVar[str] = ContextVar("owner", default="")
"""Whose request runs here, set at the door: a key, or an address on a public page. "": anyone's.
Tasks that a request starts inherit it."""
TICKET: ContextVar[str] = ContextVar("ticket", default="")
"""Of the waiting caller whose request runs here, likewise (gateway/waiting.py)."""


class Why(StrEnum):
    """Why a call was not taken."""

    DRAINING = "draining"
    LINES = "lines"
    OWNER = "owner"
    LOAD = "load"
    LATENCY = "latency"
    STAGE = "stage"
    MEMORY = "memory"
    FILES = Lack.FILES.value
    PROCESS_MEMORY = Lack.MEMORY.value


PASSES = frozenset(Why) - {Why.DRAINING, Why.OWNER}
"""What a web caller may wait for."""


class Refused(CapacityError):
    """retry_after_s: when a line will probably be free."""

    def __init__(self, why: Why, message: str, code: str, retry_after_s: int) -> None:
        super().__init__(message, code=code)
        self.why = why
        self.retry_after_s = retry_after_s


def retry_after(error: CapacityError) -> str:
    """The value of a Retry-After header."""
    return str(error.retry_after_s if isinstance(error, Refused) else RETRY_AFTER_S)


def judge(outlook: Outlook, shed: Shed, limit_s: float) -> Why | None:
    """Why one caller more would be answered too late, or would make others be; None: they would
    not. The first caller is always taken. limit_s: of the predicted answer. Pure.
    """
    if not outlook.calls:
        return None
    if shed >= Shed.CALLS:
        return Why.LOAD
    if outlook.full() is not None:
        return Why.STAGE
    if outlook.answer_s(1) > limit_s:
        return Why.LATENCY
    return None if outlook.memory_left else Why.MEMORY


@dataclass(frozen=True, slots=True)
class Decision:
    """why: "" if the call was taken. live: calls then."""

    at_s: float
    transport: str
    why: str
    live: int


class Admission:
    """A line is taken before a call's first resource, and given back once, whatever happens."""

    def __init__(
        self,
        max_calls: int,
        max_each: int = 0,
        *,
        forecast: Callable[[int], Why | None] = lambda live: None,
        clock: Clock | None = None,
    ) -> None:
        """max_each: of one owner; 0: max_calls. forecast: why one more than so many live calls
        can't be carried; asked only where a line is free."""
        self.max_calls = max_calls
        self.max_each = max_each
        self._forecast = forecast
        self._clock = clock or MonotonicClock()
        self._by_owner: Counter[str] = Counter()
        self._usual_s = USUAL_CALL_S
        self.active = 0
        """Lines taken: live calls, and those kept for who waited for one."""
        self.refused = 0
        self.draining = False
        self.counts: Counter[tuple[str, str]] = Counter()
        """(transport, why); "": taken."""
        self.decisions: deque[Decision] = deque(maxlen=KEPT)

    @contextmanager
    def call(self, transport: str = "", *, kept: bool = False) -> Iterator[None]:
        """Raises Refused. kept: a line that `keep` took is this call's."""
        owner = OWNER.get()
        if not kept:
            refusal = self.why_not(owner)
            self.note(transport, refusal.why if refusal is not None else None)
            if refusal is not None:
                raise refusal
            self.keep(owner)
        else:
            self.note(transport, None)
        began_s = self._clock.now()
        try:
            yield
        finally:
            self.give_back(owner)
            self._usual_s += 0.1 * (self._clock.now() - began_s - self._usual_s)

    def why_not(self, owner: str) -> Refused | None:
        """What speaks against a call of this owner now."""
        if self.draining:
            return self._refusal(Why.DRAINING)
        if self.active >= self.max_calls:
            return self._refusal(Why.LINES)
        if owner and self.max_each and self._by_owner[owner] >= self.max_each:
            return self._refusal(Why.OWNER)
        why = self._forecast(self.active)
        return None if why is None else self._refusal(why)

    def keep(self, owner: str) -> None:
        """Take a line."""
        self.active += 1
        self._by_owner[owner] += 1

    def give_back(self, owner: str) -> None:
        self.active -= 1
        self._by_owner[owner] -= 1
        if not self._by_owner[owner]:
            del self._by_owner[owner]

    def note(self, transport: str, why: Why | None) -> None:
        """Count a decision."""
        self.refused += why is not None
        self.counts[transport, why or ""] += 1
        self.decisions.append(Decision(self._clock.now(), transport, why or "", self.active))

    def wait_s(self, place: int) -> float:
        """Predicted seconds until the caller at this place of a queue (1: the first) gets a line:
        calls end as often as they usually do."""
        return place * self._usual_s / max(1, self.active)

    def gauges(self) -> dict[str, float]:
        taken = sum(n for (_, why), n in self.counts.items() if not why)
        refused: Counter[str] = Counter()
        for (_, why), n in self.counts.items():
            refused[why] += n
        return {
            "calls_admitted_total": float(taken),
            **{f"calls_refused_{why.value}_total": float(refused[why.value]) for why in Why},
        }

    def _refusal(self, why: Why) -> Refused:
        code, message = {
            Why.DRAINING: ("VA461", "The server is shutting down. Try again later."),
            Why.LINES: (
                "VA460",
                f"All {self.max_calls} lines are busy. Try again in a moment.",
            ),
            Why.OWNER: (
                "VA467",
                f"{self.max_each} calls are live for this key or address, and no more may be.",
            ),
            Why.FILES: (
                "VA468",
                "The server has nearly as many files and connections open as it may. "
                "Try again in a moment.",
            ),
            Why.PROCESS_MEMORY: (
                "VA468",
                "The server's memory is nearly full. Try again in a moment.",
            ),
        }.get(why, ("VA478", "The server is too busy to answer quickly. Try again in a moment."))
        soon_s = math.ceil(min(MOST_RETRY_S, max(1.0, self.wait_s(1))))
        return Refused(why, message, code, RETRY_AFTER_S if why is Why.DRAINING else soon_s)
