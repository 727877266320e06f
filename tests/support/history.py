"""Histories in temporary files, and entries to put into them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from voice_agent.clock import ManualClock
from voice_agent.history.entries import CallEntry, TurnEntry
from voice_agent.history.history import History, Keep, Pace
from voice_agent.history.store import Store
from voice_agent.trace import Mark, TurnTrace
from voice_agent.trace_record import record_of
from voice_agent.types import TurnId

FAST = Pace(gather_s=0.0, retry_s=0.02, retry_most_s=0.1, sweep_s=0.05)
GIVE_UP_S = 60.0  # never asserted, only given up on


def url(path: Path) -> sa.URL:
    return sa.URL.create("sqlite", database=str(path))


def call(name: str = "c1", began: float = 100.0, **more: Any) -> CallEntry:
    return CallEntry(name, "reception", "webrtc", began, **more)


def ended(name: str = "c1", began: float = 100.0, length: float = 60.0) -> CallEntry:
    return call(name, began, ended_unix_s=began + length, outcome="caller_hung_up")


def trace(index: int = 0, call: str = "c1", words: str = "my secret") -> TurnTrace:
    t = TurnTrace(TurnId(call, index), transcript=words, reply_text=words, heard=words)
    t.outcome = "spoken"
    t.mark(Mark.SPEECH_END, 10.0 + index)
    t.mark(Mark.COMMIT, 10.4 + index)
    t.mark(Mark.FIRST_SOUND, 10.7 + index)
    return t


def turn(
    n: int, entry: CallEntry | None = None, *, content: bool = False, **more: Any
) -> TurnEntry:
    entry = entry or call()
    record = record_of(trace(n, entry.id, **more), content=content, unix_s=entry.began_unix_s)
    return TurnEntry(entry, n, record)


def history(store: Store, *, content: bool = False, size: int = 64, **keep: Any) -> History:
    kept = Keep(**({"days": 1e6, "max_bytes": 1 << 30, "content": content} | keep))
    return History(store, ManualClock(), kept, size=size, pace=FAST)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What is in the file, read without any code of ours."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def wait_until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not true():
        assert time.monotonic() < give_up, "it never came about"
        time.sleep(0.005)
