"""The same history on PostgreSQL: a real server, which is stopped under way."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.history import call, ended, history, turn, wait_until
from voice_agent.errors import UsageError
from voice_agent.history.export import to_csv
from voice_agent.history.reader import Reader
from voice_agent.history.store import Store

FOLDERS = [os.environ["PATH"], *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
USER = "nobody" if os.geteuid() == 0 else None
"""PostgreSQL does not run as root."""
INITDB = shutil.which("initdb", path=os.pathsep.join(FOLDERS))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(INITDB is None, reason="NOT RUN: needs PostgreSQL's server"),
    pytest.mark.skipif(find_spec("psycopg") is None, reason="NOT RUN: needs psycopg"),
]


@dataclass
class Cluster:
    """A database server of its own, which listens on a socket in its folder only."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> sa.URL:
        where = {"host": str(self.folder)}
        return sa.URL.create("postgresql+psycopg", "owner", database="postgres", query=where)

    def start(self) -> None:
        command = [_program("postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        self.process = subprocess.Popen(
            [*command, "-c", "listen_addresses="],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=USER,
        )  # fmt: skip
        wait_until(self._answers)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)  # connections are broken, data is kept
            self.process.wait(60)
            self.process = None

    def _answers(self) -> bool:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with contextlib.suppress(sa.exc.OperationalError), engine.connect():
            return True
        time.sleep(0.1)
        return False

    def rows(self, query: str) -> list[tuple[object, ...]]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]


def _program(name: str) -> str:
    assert INITDB is not None
    return str(Path(INITDB).resolve().with_name(name))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="pg") as name:  # a socket's path is short
        folder = Path(name)
        if USER is not None:
            shutil.chown(folder, USER)
        subprocess.run(
            [_program("initdb"), "-D", str(folder / "data"), "-U", "owner", "-A", "trust", "-N"],
            check=True, capture_output=True, user=USER,
        )  # fmt: skip
        found = Cluster(folder)
        found.start()
        try:
            yield found
        finally:
            found.stop()


COUNTS = "SELECT (SELECT count(*) FROM calls), (SELECT count(*) FROM turns)"


def test_it_is_written_read_exported_and_deleted(cluster: Cluster) -> None:
    store = Store(cluster.url)
    store.prepare()
    one, old = ended("c1", began=1000.0), ended("old", began=10.0)
    store.write([call("c1", began=1000.0), turn(1, one), turn(2, one), one, old, turn(1, old)])
    store.write([turn(2, one), one])
    assert cluster.rows(COUNTS) == [(2, 3)], "writing again changes nothing"
    reader = Reader(cluster.url)
    assert [seen.call.id for seen in reader.latest(9)] == ["c1", "old"]
    assert [record["n"] for record in reader.turns("c1")] == [1, 2]
    out = io.StringIO()
    to_csv(reader.each(), out)
    assert len(out.getvalue().splitlines()) == 4
    assert store.forget(before_unix_s=500.0, max_bytes=1) == 1
    assert cluster.rows(COUNTS) == [(1, 2)]
    store.close()


def test_a_server_that_is_stopped_under_way_costs_what_did_not_fit(cluster: Cluster) -> None:
    kept = history(Store(cluster.url), size=4)
    kept.start()
    kept.put(call())
    wait_until(lambda: kept.written == 1)
    cluster.stop()
    for n in range(1, 8):
        kept.put(turn(n))
    wait_until(lambda: kept.gauges()["history_up"] == 0.0)
    cluster.start()
    wait_until(lambda: kept.gauges()["history_up"] == 1.0 and not kept.gauges()["history_waiting"])
    kept.put(ended())
    kept.close()
    assert cluster.rows("SELECT n FROM turns ORDER BY n") == [(n,) for n in range(1, 5)]
    assert cluster.rows("SELECT outcome FROM calls") == [("caller_hung_up",)]
    assert kept.dropped == 3


def test_tables_of_another_program_are_left_alone(cluster: Cluster) -> None:
    engine = sa.create_engine(cluster.url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE calls (number integer)"))
    engine.dispose()
    with pytest.raises(UsageError, match="VA437"):
        Store(cluster.url).prepare()
    assert cluster.rows("SELECT count(*) FROM calls") == [(0,)]
