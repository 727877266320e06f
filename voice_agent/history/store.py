"""Writes entries and deletes old calls. Blocking; used by one thread at a time."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from voice_agent.errors import UsageError

from . import revisions
from .database import file_of, make_engine, name_of
from .entries import CallEntry, Entry, TurnEntry
from .revisions import Standing
from .schema import CALLS, TURNS, turn_row

log = logging.getLogger(__name__)

BUSY_S = 2.0
OLD_AT_ONCE, LARGE_AT_ONCE = 100, 8
"""Calls deleted in one transaction for their age, and for the size of all."""
SIDE_FILES = ("-journal", "-wal", "-shm")


class Store:
    """Owns the database. A file that was deleted or emptied is noticed before each transaction and
    made anew.

    Besides what is noted, methods raise SQLAlchemy's errors and OSError; nothing was changed then.
    """

    def __init__(self, url: sa.URL, *, busy_s: float = BUSY_S) -> None:
        """Raises UsageError VA436."""
        self.name = name_of(url)
        self._path = file_of(url)
        self._engine = make_engine(url, busy_s=busy_s)
        self._seen: tuple[int, ...] | None = None
        """Device and inode of the file whose tables were found right; None: look again."""

    def prepare(self) -> Standing:
        """Make the file (readable by its owner only) and bring its tables up to date. Returns what
        they were. Raises UsageError VA437 for tables that are not ours to change."""
        if self._path is not None:
            _make_file(self._path)
        with self._engine.begin() as connection:
            found = revisions.standing(connection)
            if found in (Standing.EMPTY, Standing.OLD):
                revisions.upgrade(connection)
            elif found is not Standing.CURRENT:
                raise unsuitable(self.name, found)
        self._seen = self._identity()
        if found is Standing.OLD:
            log.warning("call history: %s was brought up to date", self.name)
        return found

    def write(self, entries: Sequence[Entry]) -> None:
        """All of them, or none. What is there already, after a try whose end was not seen, is left
        as it is."""
        calls: dict[str, CallEntry] = {}
        for entry in entries:
            if isinstance(entry, CallEntry):
                calls[entry.id] = entry
            else:
                calls.setdefault(entry.call.id, entry.call)
        turns = [entry for entry in entries if isinstance(entry, TurnEntry)]
        with self._transaction() as connection:
            _write_calls(connection, calls)
            _write_turns(connection, turns)

    def forget(self, before_unix_s: float, max_bytes: int) -> int:
        """Delete some of the calls that were over before then, else of the oldest while the file
        is larger. Returns how many; 0: nothing more is to be done."""
        with self._transaction() as connection:
            gone = _old(connection, before_unix_s) or self._too_many(connection, max_bytes)
            if gone:
                connection.execute(sa.delete(TURNS).where(TURNS.c.call.in_(gone)))
                connection.execute(sa.delete(CALLS).where(CALLS.c.id.in_(gone)))
        if gone and self._path is not None:
            self._shrink()
        return len(gone)

    def set_aside(self) -> Path | None:
        """Rename a damaged file; the next transaction makes a new one. None: there is no file."""
        self._seen = None
        if self._path is None:
            return None
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        aside = self._path.with_name(f"{self._path.name}.damaged-{stamp}")
        self._path.rename(aside)
        _drop_side_files(self._path)
        return aside

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        if self._seen is None or self._seen != self._identity():
            lost = self._seen is not None
            self._seen = None
            if self.prepare() is Standing.EMPTY and lost:
                log.warning("call history: %s was gone; a new one was begun", self.name)
        try:
            with self._engine.begin() as connection:
                yield connection
        except Exception:
            self._seen = None
            raise

    def _shrink(self) -> None:
        """Give free pages back to the disk. Each step of the statement frees one, and the driver
        makes all steps of a script only."""
        with self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.executescript("PRAGMA incremental_vacuum")

    def _identity(self) -> tuple[int, ...] | None:
        """None: no file, or an empty one."""
        if self._path is None:
            return ()
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return (stat.st_dev, stat.st_ino) if stat.st_size else None

    def _too_many(self, connection: sa.Connection, max_bytes: int) -> list[str]:
        if self._path is None:
            return []
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()) for name in names
        )
        if (pages - free) * size <= max_bytes:
            return []
        oldest = sa.select(CALLS.c.id).order_by(CALLS.c.began_unix_s).limit(LARGE_AT_ONCE)
        return list(connection.scalars(oldest))


def unsuitable(name: str, found: Standing | None) -> UsageError:
    """VA437. found: None for no tables at all."""
    if found is Standing.UNKNOWN:
        text = f"{name} was written by a newer version of voice-agent: update this one"
    elif found is Standing.FOREIGN:
        text = f"{name} holds the tables of something else"
    else:
        text = f"{name} is no database"
    return UsageError(f"{text}, or give the history another place (history.url)", code="VA437")


def _write_calls(connection: sa.Connection, calls: dict[str, CallEntry]) -> None:
    there = set(connection.scalars(sa.select(CALLS.c.id).where(CALLS.c.id.in_(calls))))
    new = [
        {column.name: getattr(call, column.name) for column in CALLS.columns}
        for call in calls.values()
        if call.id not in there
    ]
    if new:
        connection.execute(sa.insert(CALLS), new)
    for call in calls.values():
        if call.id in there and call.ended_unix_s is not None:
            ended = {
                "ended_unix_s": call.ended_unix_s,
                "outcome": call.outcome,
                "fault": call.fault,
            }
            connection.execute(sa.update(CALLS).where(CALLS.c.id == call.id).values(ended))


def _write_turns(connection: sa.Connection, turns: Sequence[TurnEntry]) -> None:
    ids = {entry.call.id for entry in turns}
    last = sa.select(TURNS.c.call, sa.func.max(TURNS.c.n)).where(TURNS.c.call.in_(ids))
    grouped = connection.execute(last.group_by(TURNS.c.call))
    there: dict[str, int] = {row[0]: row[1] for row in grouped}
    new = [
        turn_row(entry.call.id, entry.n, entry.record)
        for entry in turns
        if entry.n > there.get(entry.call.id, 0)
    ]
    if new:
        connection.execute(sa.insert(TURNS), new)


def _old(connection: sa.Connection, before_unix_s: float) -> list[str]:
    over = sa.func.coalesce(CALLS.c.ended_unix_s, CALLS.c.began_unix_s)
    old = sa.select(CALLS.c.id).where(CALLS.c.began_unix_s < before_unix_s, over < before_unix_s)
    return list(connection.scalars(old.order_by(CALLS.c.began_unix_s).limit(OLD_AT_ONCE)))


def _make_file(path: Path) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _drop_side_files(path)  # of a file that is gone: they would be applied to the new one
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _drop_side_files(path: Path) -> None:
    for suffix in SIDE_FILES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
