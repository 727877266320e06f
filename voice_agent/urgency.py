"""Which piece of work goes first, in every stage: pure functions of its deadline and the time.

A deadline is when the caller's ear next needs sound; the work must begin earlier by what this stage
and the later ones will take. A call that is being heard and could not wait for another piece of
work goes before all that have not begun: a hole in a word is worse than a later start. The engine
has the same rule for its steps (engine/policy.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Due:
    """deadline_s: of the clock; infinite: whenever there is nothing else to do. service_s:
    predicted seconds of this stage and all later ones. sounding: its caller is being spoken to."""

    deadline_s: float
    service_s: float = 0.0
    sounding: bool = False

    @property
    def begin_by_s(self) -> float:
        return self.deadline_s - self.service_s


def order(due: Due) -> float:
    """The key to sort by: when the work must begin to be in time."""
    return due.begin_by_s


def cannot_wait(dues: Iterable[Due], now: float, piece_s: float, workers: int = 1) -> bool:
    """Whether a call that is being heard would be late if one more piece were made before all of
    them; then the first of them in order goes before everybody else.

    piece_s: that other piece's service. The calls that are heard wait for each other, too.
    """
    work_s = piece_s
    for due in sorted((due for due in dues if due.sounding), key=lambda due: due.deadline_s):
        work_s += due.service_s / workers
        if now + work_s >= due.deadline_s:
            return True
    return False


def rebased(due: Due, now: float, target_s: float) -> float | None:
    """A new deadline for work that is late already, or will be; None while it can be in time.

    To be asked once for each piece of work: what is late in any case would else go before all that
    could still be in time, and make them late too.
    """
    if due.sounding or math.isinf(due.deadline_s) or now <= due.begin_by_s:
        return None
    return now + due.service_s + target_s
