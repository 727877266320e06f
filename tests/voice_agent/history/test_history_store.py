"""The database itself: written once, deleted in time, replaced when it is gone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import DatabaseError, OperationalError

from tests.support.history import call, ended, rows, turn, url
from voice_agent.config import load_config
from voice_agent.errors import UsageError
from voice_agent.history.database import Trouble, make_engine, name_of, trouble_of, url_of
from voice_agent.history.store import Store

pytestmark = pytest.mark.unit

COUNTS = "SELECT (SELECT count(*) FROM calls), (SELECT count(*) FROM turns)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "h.db"


@pytest.fixture
def store(path: Path) -> Store:
    return Store(url(path), busy_s=0.02)


def test_a_call_is_one_row_from_its_first_word_to_its_end(store: Store, path: Path) -> None:
    store.write([call(), turn(1)])
    store.write([turn(2), ended()])
    assert rows(path, COUNTS) == [(1, 2)]
    assert rows(path, "SELECT ended_unix_s, outcome FROM calls") == [(160.0, "caller_hung_up")]


def test_a_turn_whose_calls_beginning_was_dropped_brings_it(store: Store, path: Path) -> None:
    store.write([turn(3)])
    assert rows(path, "SELECT id, agent, began_unix_s FROM calls") == [("c1", "reception", 100.0)]


def test_writing_again_changes_nothing(store: Store, path: Path) -> None:
    entries = [call(), turn(1), turn(2), ended()]
    store.write(entries)
    before = rows(path, "SELECT * FROM turns"), rows(path, "SELECT * FROM calls")
    store.write(entries)
    assert (rows(path, "SELECT * FROM turns"), rows(path, "SELECT * FROM calls")) == before


def test_only_its_owner_may_read_it(store: Store, path: Path) -> None:
    store.write([call()])
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_old_calls_go_and_their_words_with_them(store: Store, path: Path) -> None:
    calls = [ended(f"c{n:03}", began=100.0 * n) for n in range(300)]
    words = [f"secret{n:03}" for n in range(300)]
    store.write([turn(1, c, content=True, words=w) for c, w in zip(calls, words, strict=True)])
    store.write(calls)
    deleted = 0
    while gone := store.forget(before_unix_s=25_000.0, max_bytes=1 << 40):
        deleted += gone
    assert deleted == 250  # number 249 ended at 24,960
    assert rows(path, COUNTS) == [(50, 50)]
    raw = path.read_bytes()
    assert b"secret249" not in raw
    assert b"secret250" in raw


def test_a_call_that_lasts_is_not_old(store: Store, path: Path) -> None:
    store.write([ended("long", began=0.0, length=500.0), ended("short", began=0.0, length=1.0)])
    store.forget(before_unix_s=400.0, max_bytes=1 << 40)
    assert rows(path, "SELECT id FROM calls") == [("long",)]


def test_the_oldest_go_when_there_is_too_much(store: Store, path: Path) -> None:
    calls = [ended(f"c{n:03}", began=float(n)) for n in range(100)]
    long = {"content": True, "words": "x" * 2000}
    store.write([turn(n, one, **long) for one in calls for n in (1, 2)])
    assert path.stat().st_size > 1 << 20
    while store.forget(before_unix_s=0.0, max_bytes=512 << 10):
        pass
    assert path.stat().st_size <= 512 << 10
    left = [name for (name,) in rows(path, "SELECT id FROM calls ORDER BY id")]
    assert left == [f"c{n:03}" for n in range(100 - len(left), 100)]
    assert left


@pytest.mark.parametrize("how", ["deleted", "emptied", "folder gone"])
def test_a_database_that_is_gone_is_begun_anew(
    store: Store, path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.write([call(), turn(1)])
    if how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    if how == "folder gone":
        path.parent.rmdir()
    store.write([turn(2)])
    assert rows(path, "SELECT n FROM turns") == [(2,)]
    assert path.stat().st_mode & 0o077 == 0
    assert "was gone; a new one was begun" in caplog.text


def test_a_journal_of_a_file_that_is_gone_is_not_applied(store: Store, path: Path) -> None:
    store.write([call()])
    path.unlink()
    journal = path.with_name(path.name + "-journal")
    journal.write_bytes(b"whatever")
    store.write([turn(2)])
    assert not journal.exists()
    assert rows(path, COUNTS) == [(1, 1)]


def test_another_programs_lock_is_waited_for_and_then_left(store: Store, path: Path) -> None:
    store.write([call()])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(OperationalError, match="locked") as caught:
        store.write([turn(1)])
    assert trouble_of(caught.value) is Trouble.OUTAGE
    other.execute("ROLLBACK")
    other.close()
    store.write([turn(1)])
    assert rows(path, COUNTS) == [(1, 1)]


def test_a_damaged_file_is_kept_aside(store: Store, path: Path) -> None:
    store.write([call(), turn(1)])
    path.write_bytes(b"\0garbage" * 2000)
    with pytest.raises(DatabaseError) as caught:
        store.write([turn(2)])
    assert trouble_of(caught.value) is Trouble.DAMAGE
    aside = store.set_aside()
    assert aside is not None
    assert aside.read_bytes().startswith(b"\0garbage")
    store.write([turn(2)])
    assert rows(path, "SELECT n FROM turns") == [(2,)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("history.db", "sqlite:///FILE"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("oracle8://u:pw@h/d", "no kind of database"),
        ("mysql+pymysql://u:pw@h/d", "pip install pymysql"),
    ],
)
def test_an_address_that_cannot_be(given: str, says: str) -> None:
    config = load_config(None, {"history.url": given}).config
    with pytest.raises(UsageError, match="VA436") as caught:
        make_engine(url_of(config.history), busy_s=1.0)
    assert says in str(caught.value)
    assert "pw" not in str(caught.value)


def test_a_password_is_never_shown() -> None:
    address = "postgresql+psycopg://agent:hunter2@db/calls"
    loaded = load_config(None, {"history.url": address})
    assert "hunter2" not in repr(loaded.config)
    assert not any("hunter2" in value for _, value, _ in loaded.rows())
    assert "hunter2" not in name_of(url_of(loaded.config.history))
