"""Looks into a history, while a server writes it or not. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from voice_agent.errors import UsageError

from .database import file_of, make_engine, name_of, no_database, reason_of
from .entries import CallEntry
from .revisions import Standing, standing
from .schema import CALLS, TURNS
from .store import BUSY_S, unsuitable

T = TypeVar("T")

PAGE = 100  # calls read at once: no lock is held for long
WORDS = ("transcript", "reply_text", "heard")


@dataclass(frozen=True, slots=True)
class Overview:
    """A call at a glance. voice_to_voice_ms: the median of its turns, None without one.

    outcome is None while it lives, and for ever if the server ended before it could be written.
    """

    call: CallEntry
    turns: int
    voice_to_voice_ms: float | None


@dataclass(frozen=True, slots=True)
class Which:
    """Of which calls; None: all."""

    agent: str | None = None
    outcome: str | None = None
    since_unix_s: float | None = None

    @property
    def conditions(self) -> list[sa.ColumnElement[bool]]:
        found = []
        if self.agent is not None:
            found.append(CALLS.c.agent == self.agent)
        if self.outcome is not None:
            found.append(CALLS.c.outcome == self.outcome)
        if self.since_unix_s is not None:
            found.append(CALLS.c.began_unix_s >= self.since_unix_s)
        return found


class Reader:
    """Owns nothing but an address; each question is a connection of its own.

    Methods raise UsageError VA436 for a database that cannot be read.
    """

    def __init__(self, url: sa.URL) -> None:
        """Raises UsageError VA436, VA437 (somebody else's), VA438 (older than this version)."""
        self.name = name_of(url)
        file = file_of(url)
        if file is not None and not file.exists():
            text = f"there is no history at {self.name} yet: `voice-agent up` begins it"
            raise UsageError(text, code="VA436")
        self._engine = make_engine(url, busy_s=BUSY_S, read_only=True)
        found = self._ask(standing)
        if found is Standing.OLD:
            raise UsageError(
                f"{self.name} was written by an older version: `voice-agent calls migrate` brings "
                "it up to date, and so does starting the server",
                code="VA438",
            )
        if found in (Standing.UNKNOWN, Standing.FOREIGN):
            raise unsuitable(self.name, found)
        self._empty = found is Standing.EMPTY

    def latest(self, limit: int, which: Which | None = None) -> list[Overview]:
        """The newest first."""
        if self._empty:
            return []
        order = sa.desc(CALLS.c.began_unix_s), CALLS.c.id
        query = sa.select(CALLS).where(*(which or Which()).conditions).order_by(*order)
        return self._ask(lambda c: _overviews(c, query.limit(limit)))

    def find(self, start: str) -> Overview:
        """The call whose id begins so. Raises UsageError VA439 unless it is exactly one."""
        query = sa.select(CALLS).where(CALLS.c.id.startswith(start, autoescape=True)).limit(2)
        found = [] if self._empty else self._ask(lambda c: _overviews(c, query))
        if len(found) != 1 or not start:
            problem = "several calls have" if len(found) > 1 else "no call has"
            raise UsageError(
                f"{problem} an id that begins with {start!r}: `voice-agent calls list` shows them",
                code="VA439",
            )
        return found[0]

    def turns(self, call: str) -> list[dict[str, Any]]:
        """The records of a call's turns in the order in which they ended, words included where
        they were kept."""
        query = sa.select(TURNS).where(TURNS.c.call == call).order_by(TURNS.c.n)
        return self._ask(lambda c: [_record(row) for row in c.execute(query).mappings()])

    def each(self, which: Which | None = None) -> Iterator[tuple[CallEntry, list[dict[str, Any]]]]:
        """Every call with its turns, the oldest first."""
        after: tuple[float, str] | None = None
        while not self._empty:
            page = self._ask(partial(_page, which=which or Which(), after=after))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1][0].began_unix_s, page[-1][0].id

    def _ask(self, question: Callable[[sa.Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return question(connection)
        except SQLAlchemyError as error:
            if no_database(error):
                raise unsuitable(self.name, None) from None
            raise UsageError(
                f"{self.name} cannot be read: {reason_of(error)}", code="VA436"
            ) from None


def _call(row: sa.RowMapping) -> CallEntry:
    return CallEntry(**{column.name: row[column.name] for column in CALLS.columns})


def _record(row: sa.RowMapping) -> dict[str, Any]:
    return {"n": row["n"], **row["trace"], **{name: row[name] or "" for name in WORDS}}


def _overviews(connection: sa.Connection, query: sa.Select[Any]) -> list[Overview]:
    calls = [_call(row) for row in connection.execute(query).mappings()]
    times: dict[str, list[float | None]] = {call.id: [] for call in calls}
    asked = sa.select(TURNS.c.call, TURNS.c.voice_to_voice_ms).where(TURNS.c.call.in_(times))
    for call, ms in connection.execute(asked):
        times[call].append(ms)
    return [Overview(call, len(times[call.id]), _median(times[call.id])) for call in calls]


def _median(times: Sequence[float | None]) -> float | None:
    known = [ms for ms in times if ms is not None]
    return median(known) if known else None


def _page(
    connection: sa.Connection, which: Which, after: tuple[float, str] | None
) -> list[tuple[CallEntry, list[dict[str, Any]]]]:
    key = sa.tuple_(CALLS.c.began_unix_s, CALLS.c.id)
    query = sa.select(CALLS).where(*which.conditions).order_by(CALLS.c.began_unix_s, CALLS.c.id)
    if after is not None:
        query = query.where(key > after)
    calls = [_call(row) for row in connection.execute(query.limit(PAGE)).mappings()]
    turns: dict[str, list[dict[str, Any]]] = {call.id: [] for call in calls}
    asked = sa.select(TURNS).where(TURNS.c.call.in_(turns)).order_by(TURNS.c.call, TURNS.c.n)
    for row in connection.execute(asked).mappings():
        turns[row["call"]].append(_record(row))
    return [(call, turns[call.id]) for call in calls]
