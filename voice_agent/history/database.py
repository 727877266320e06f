"""Which database the history is in, how it is opened, and what its errors mean."""

from __future__ import annotations

import sqlite3
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    StatementError,
)
from sqlalchemy.pool import NullPool

from voice_agent.errors import UsageError
from voice_agent.history_section import HistoryConfig
from voice_agent.models import data_dir

FILE = "history.db"
_CORRUPT, _NOT_A_DATABASE = 11, 26  # SQLite's result codes


class Trouble(StrEnum):
    """What an error of the database calls for."""

    OUTAGE = "outage"  # full, locked, gone, unreachable: try again later
    DAMAGE = "damage"  # what is there is no database any more
    ENTRY = "entry"  # it does not take this one record


def trouble_of(error: Exception) -> Trouble:
    if _code(error) in (_CORRUPT, _NOT_A_DATABASE):
        return Trouble.DAMAGE
    if isinstance(error, DBAPIError):
        ours = isinstance(error.orig, sqlite3.ProgrammingError | sqlite3.InterfaceError)
        entry = ours or isinstance(error, DataError | IntegrityError)
    else:
        entry = isinstance(error, StatementError | ValueError | TypeError)
    return Trouble.ENTRY if entry else Trouble.OUTAGE


def no_database(error: Exception) -> bool:
    """The file is something else, and was so before we came."""
    return _code(error) == _NOT_A_DATABASE


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0: none."""
    orig = error.orig if isinstance(error, DBAPIError) else None
    return int(getattr(orig, "sqlite_errorcode", 0)) & 0xFF


def reason_of(error: Exception) -> str:
    """In words, without the statement and its values."""
    if isinstance(error, DBAPIError):
        return str(error.orig).strip()
    return str(error) if isinstance(error, OSError | UsageError) else type(error).__name__


def url_of(config: HistoryConfig) -> sa.URL:
    """Raises UsageError VA436."""
    if not config.url:
        return sa.URL.create("sqlite", database=str(data_dir() / FILE))
    try:
        url = sa.make_url(config.url)
    except ArgumentError:
        raise UsageError(
            "history.url is no address of a database: write sqlite:///FILE (four slashes before "
            "an absolute path), or postgresql+psycopg://USER:PASSWORD@HOST/NAME",
            code="VA436",
        ) from None
    if file_of(url) is None and url.get_backend_name() == "sqlite":
        raise UsageError("history.url names no file: write sqlite:///FILE", code="VA436")
    return url


def file_of(url: sa.URL) -> Path | None:
    """SQLite's file; None for a database elsewhere."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database)).expanduser()


def name_of(url: sa.URL) -> str:
    """As messages call it: without a password."""
    return str(file_of(url) or url.render_as_string(hide_password=True))


def make_engine(url: sa.URL, *, busy_s: float, read_only: bool = False) -> sa.Engine:
    """Nothing is connected yet; every connection is made anew and closed after its transaction.

    SQLite keeps its rollback journal: a WAL needs a file mapped into memory, and what happens to
    a mapped file on a broken disk is a signal that ends the process. busy_s: the longest wait for
    another program's lock. Raises UsageError VA436 (no such kind of database, or no driver).
    """
    options: dict[str, Any] = {"poolclass": NullPool, "hide_parameters": True}
    path = file_of(url)
    if path is not None:
        options["connect_args"] = {"timeout": busy_s}
        database = str(path)
        if read_only:
            database = f"file:{quote(str(path.absolute()))}"
            url = url.update_query_dict({"mode": "ro", "uri": "true"})
        url = url.set(database=database)
    try:
        engine = sa.create_engine(url, **options)
    except NoSuchModuleError:
        raise UsageError(
            f"history.url: {url.drivername} is no kind of database that is known here", code="VA436"
        ) from None
    except ModuleNotFoundError as e:
        extra = "'psycopg[binary]'" if e.name == "psycopg" else e.name
        raise UsageError(
            f"history.url needs a driver that is not installed: pip install {extra}", code="VA436"
        ) from None
    if path is not None:
        _own_transactions(engine, path, read_only)
    return engine


def _own_transactions(engine: sa.Engine, path: Path, read_only: bool) -> None:
    """Python's driver would begin late, and not at all before a change of the tables."""

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        if read_only:
            return
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        if not path.stat().st_size:  # of a new file; it would be written into an old one
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")

    @sa.event.listens_for(engine, "begin")
    def _began(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
