"""What a live call tells its history. Records only; each is complete, so that any may be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class CallEntry:
    """A call as far as it is known. Times are Unix seconds; what ends it is None while it lives.

    outcome: why it ended (`EndReason`). fault: code of the last error that the caller was told.
    """

    id: str
    agent: str
    transport: str
    began_unix_s: float
    ended_unix_s: float | None = None
    outcome: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEntry:
    """The nth turn that ended in a call. record: `trace_record.record_of`."""

    call: CallEntry
    n: int
    record: Mapping[str, Any]


Entry: TypeAlias = CallEntry | TurnEntry
