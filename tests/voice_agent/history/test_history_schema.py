"""Old tables are brought up to date, or nothing is touched and the message says what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from tests.support.history import call, history, rows, turn, url
from voice_agent.errors import UsageError
from voice_agent.history import revisions
from voice_agent.history.database import make_engine
from voice_agent.history.reader import Reader
from voice_agent.history.schema import METADATA
from voice_agent.history.store import Store

pytestmark = pytest.mark.unit

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "0001"

def upgrade():
    op.add_column("calls", sa.Column("caller_mood", sa.Text))
    op.execute("UPDATE calls SET caller_mood = 'fine'")
"""
BREAKS = NEXT + "    op.execute('UPDATE no_such_table SET x = 1')\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "h.db"


def next_version(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str = NEXT) -> None:
    """From now on this code knows one more revision."""
    folder.mkdir(exist_ok=True)
    (folder / "next.py").write_text(text)
    monkeypatch.setattr(revisions, "VERSIONS", (*revisions.VERSIONS, folder))


def test_the_revisions_lead_to_the_tables_that_the_code_uses(path: Path) -> None:
    Store(url(path)).prepare()
    options = {"compare_type": True, "version_table": revisions.VERSION_TABLE}
    with make_engine(url(path), busy_s=1.0).begin() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, METADATA) == []


def test_an_old_one_is_brought_up_to_date_at_start(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(url(path)).write([call(), turn(1)])
    next_version(monkeypatch, tmp_path / "more")
    kept = history(Store(url(path)))
    kept.start()
    kept.put(turn(2))
    kept.close()
    assert rows(path, "SELECT id, caller_mood FROM calls") == [("c1", "fine")]
    assert rows(path, "SELECT n FROM turns") == [(1,), (2,)]


def test_reading_an_old_one_names_the_command(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(url(path)).write([call()])
    next_version(monkeypatch, tmp_path / "more")
    with pytest.raises(UsageError, match="voice-agent calls migrate") as caught:
        Reader(url(path))
    assert caught.value.code == "VA438"
    assert rows(path, "SELECT * FROM history_version") == [("0001",)]


def test_a_change_that_fails_changes_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(url(path)).write([call()])
    next_version(monkeypatch, tmp_path / "more", BREAKS)
    before = rows(path, "SELECT sql FROM sqlite_master")
    with pytest.raises(sa.exc.OperationalError, match="no_such_table"):
        Store(url(path)).prepare()
    assert rows(path, "SELECT sql FROM sqlite_master") == before
    assert rows(path, "SELECT * FROM history_version") == [("0001",)]


def test_a_newer_one_is_refused_and_untouched(path: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as later:
        next_version(later, tmp_path / "more")
        Store(url(path)).write([call()])
    before = path.read_bytes()
    for open_it in (history(Store(url(path))).start, lambda: Reader(url(path))):
        with pytest.raises(UsageError, match="newer version") as caught:
            open_it()
        assert caught.value.code == "VA437"
        assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_what_belongs_to_something_else_is_refused_and_untouched(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.commit()
    other.close()
    before = path.read_bytes()
    for open_it in (history(Store(url(path))).start, lambda: Reader(url(path))):
        with pytest.raises(UsageError, match="something else") as caught:
            open_it()
        assert caught.value.code == "VA437"
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_untouched(path: Path) -> None:
    path.write_text("a shopping list, and a long one\n" * 200)
    before = path.read_bytes()
    for open_it in (history(Store(url(path))).start, lambda: Reader(url(path))):
        with pytest.raises(UsageError, match="no database") as caught:
            open_it()
        assert caught.value.code == "VA437"
    assert path.read_bytes() == before


def test_a_newer_one_put_in_place_under_way_is_an_outage(path: Path, tmp_path: Path) -> None:
    """A live server never stops for it, and never writes into it."""
    store = Store(url(path))
    store.write([call()])
    path.unlink()
    with pytest.MonkeyPatch.context() as later:
        next_version(later, tmp_path / "more")
        Store(url(path)).write([call("c2")])
    kept = history(store)
    kept.put(turn(1))
    with pytest.raises(UsageError, match="newer"):
        store.write([turn(1)])
    assert not kept._work()
    assert rows(path, "SELECT id FROM calls") == [("c2",)]
