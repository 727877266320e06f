"""Looking into a history: what is listed, found and exported is what was written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support.history import call, ended, turn, url
from voice_agent.errors import UsageError
from voice_agent.history.export import to_csv, to_json
from voice_agent.history.reader import PAGE, Reader, Which
from voice_agent.history.store import Store

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two and a half pages of calls; the first has three turns, the second fails."""
    path = tmp_path / "h #1%.db"  # a name that an address has to quote
    store = Store(url(path))
    calls = [ended(f"a{n:04}", began=float(n // 2)) for n in range(5 * PAGE // 2)]
    store.write([*calls, *(turn(k, calls[0]) for k in (1, 2, 3))])
    store.write([call("live", began=1e6)])
    return path


def test_the_newest_come_first_and_a_live_one_is_unfinished(path: Path) -> None:
    newest = Reader(url(path)).latest(3)
    assert [seen.call.id for seen in newest] == ["live", "a0248", "a0249"]
    assert newest[0].call.outcome is None
    assert newest[1].call.outcome == "caller_hung_up"


def test_a_call_is_found_by_how_its_id_begins(path: Path) -> None:
    reader = Reader(url(path))
    seen = reader.find("a0000")
    assert (seen.turns, seen.voice_to_voice_ms) == (3, 700.0)
    assert [record["n"] for record in reader.turns(seen.call.id)] == [1, 2, 3]
    for start in ("a00", "zz", "", "a0_00", "%"):
        with pytest.raises(UsageError, match="VA439"):
            reader.find(start)


def test_pages_join_without_a_gap_or_a_double(path: Path) -> None:
    ids = [entry.id for entry, _ in Reader(url(path)).each()]
    assert ids == [*(f"a{n:04}" for n in range(5 * PAGE // 2)), "live"]


def test_only_some_calls(path: Path) -> None:
    reader = Reader(url(path))
    assert [s.call.id for s in reader.latest(9, Which(since_unix_s=124.0))] == [
        "live", "a0248", "a0249",
    ]  # fmt: skip
    assert reader.latest(9, Which(agent="nobody")) == []
    assert len(list(reader.each(Which(outcome="caller_hung_up")))) == 5 * PAGE // 2


def test_json_has_every_record(path: Path) -> None:
    out = io.StringIO()
    assert to_json(Reader(url(path)).each(), out) == 5 * PAGE // 2 + 1
    first = json.loads(out.getvalue())[0]
    assert (first["id"], first["agent"], first["transport"]) == ("a0000", "reception", "webrtc")
    assert [t["stages"] for t in first["turns"]] == [{"end_of_turn": 400.0}] * 3
    assert first["turns"][0] == {
        "n": 1,
        **json.loads(json.dumps(turn(1, ended("a0000", 0.0)).record)),
    }


def test_csv_has_a_line_for_each_turn_and_no_formula(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    one = ended("b1")
    words = '=HYPERLINK("http://evil","x"), twice\nover'
    Store(url(path)).write([one, turn(1, one, content=True, words=words), ended("b2", began=200.0)])
    out = io.StringIO()
    assert to_csv(Reader(url(path)).each(), out) == 2
    first, second = csv.DictReader(io.StringIO(out.getvalue()))
    assert first["transcript"] == "'" + words
    assert (first["call_id"], first["n"], first["stage_end_of_turn"]) == ("b1", "1", "400.0")
    assert (second["call_id"], second["call_outcome"], second["n"]) == ("b2", "caller_hung_up", "")


def test_a_reader_changes_nothing_and_needs_a_history(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    list(Reader(url(path)).each())
    assert path.read_bytes() == before
    with pytest.raises(UsageError, match="no history") as caught:
        Reader(url(tmp_path / "none.db"))
    assert caught.value.code == "VA436"
    assert not (tmp_path / "none.db").exists()


def test_writing_goes_on_while_somebody_reads(path: Path) -> None:
    store = Store(url(path), busy_s=0.02)
    calls = Reader(url(path)).each()
    next(calls)
    store.write([ended("meanwhile", began=2e6)])
    assert [entry.id for entry, _ in calls][-1] == "meanwhile"


def test_an_empty_file_is_an_empty_history(tmp_path: Path) -> None:
    (tmp_path / "h.db").touch()
    reader = Reader(url(tmp_path / "h.db"))
    assert reader.latest(5) == []
    assert list(reader.each()) == []
    with pytest.raises(UsageError, match="VA439"):
        reader.find("a")
