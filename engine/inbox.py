"""What other threads ask of the engine thread."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.prefix import Scope
from engine.request import Request
from engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Revise:
    """A held prompt becomes its first `keep` tokens and `more`."""

    request_id: int
    keep: int
    more: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """A held prompt is final: its reply may be generated."""

    request_id: int
    params: SamplingParams
    seed: int
    max_new: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Truncate:
    """What `scope` holds of `tokens` beyond the first `keep` is of no use any more.

    request_id: the request that computed it, ended if it still runs. pin_key: its pin shrinks too.
    """

    request_id: int
    scope: Scope
    tokens: tuple[int, ...]
    keep: int
    pin_key: str
    pin_ttl_s: float


Edit = Revise | Commit | Truncate


@dataclass(slots=True)
class Inbox:
    """What other threads want. Bounded by the open requests and calls; pins by key.

    Taken in this order: submits, edits as posted, deadlines, aborts, calls that are over, unpins.
    """

    submits: list[Request] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    deadlines: dict[int, float] = field(default_factory=dict)
    aborts: dict[int, int] = field(default_factory=dict)
    """Request id -> steps made when the abort was first asked for."""
    calls_over: set[str] = field(default_factory=set)
    unpins: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(
            self.submits or self.edits or self.aborts or self.deadlines or self.unpins
            or self.calls_over
        )  # fmt: skip
