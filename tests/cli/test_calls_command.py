"""`voice-agent calls`: what an operator sees of calls that are over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.history import call, ended, rows, turn, url
from voice_agent.cli.app import app
from voice_agent.history.entries import CallEntry
from voice_agent.history.store import Store

pytestmark = pytest.mark.unit

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "voice-agent" / "history.db"
    failed = CallEntry("b2", "night", "sip", 200.0, 205.0, "server_error", "VA330")
    spoken = turn(2, content=True, words="[bold]hi\x1b[31m there")
    Store(url(path)).write([ended(), turn(1), spoken, failed, call("c3", began=300.0)])
    return path


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["calls", *args])


def test_calls_are_listed_with_how_they_went(path: Path) -> None:
    result = run("list")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if "1970-01-01" in line]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert cells == [
        ["c3", "1970-01-01 00:05:00", "", "reception", "webrtc", "unfinished", "0", ""],
        ["b2", "1970-01-01 00:03:20", "5 s", "night", "sip", "server_error (VA330)", "0", ""],
        ["c1", "1970-01-01 00:01:40", "60 s", "reception", "webrtc", "caller_hung_up", "2",
         "700 ms"],
    ]  # fmt: skip
    only = run("list", "--agent", "night").output
    assert "b2" in only
    assert "c1" not in only
    assert "c1" not in run("list", "--days", "1").output


def test_a_call_is_shown_turn_by_turn_and_steers_no_terminal(path: Path) -> None:
    result = run("show", "c")
    assert result.exit_code == 2
    assert "several calls" in result.output
    result = run("show", "c1")
    assert result.exit_code == 0, result.output
    assert "outcome caller_hung_up" in result.output
    assert "end_of_turn 400" in result.output
    assert "caller: [bold]hi\N{REPLACEMENT CHARACTER}[31m there" in result.output
    assert "0 of 0" in result.output or "2 of 2" in result.output
    assert "VA330" in run("show", "b2").output


def test_calls_are_exported(path: Path, tmp_path: Path) -> None:
    result = run("export", "--out", "calls.json")
    assert result.exit_code == 0, result.output
    out = tmp_path / "calls.json"
    assert [c["id"] for c in json.loads(out.read_text("utf-8"))] == ["c1", "b2", "c3"]
    assert out.stat().st_mode & 0o077 == 0
    table = run("export", "--format", "csv", "--outcome", "caller_hung_up").stdout
    assert len(table.splitlines()) == 3
    assert run("export", "--format", "xml").exit_code == 2
    missing = run("export", "--out", "none/calls.json")
    assert missing.exit_code == 2
    assert "VA475" in missing.output


def test_no_history_yet_says_so(tmp_path: Path) -> None:
    result = run("list")
    assert result.exit_code == 2
    assert "VA436" in result.output
    assert not (tmp_path / "data").exists()


def test_migrate_makes_what_is_missing_and_says_what_it_did(path: Path) -> None:
    assert "was up to date" in run("migrate").output
    path.unlink()
    assert "is up to date now" in run("migrate").output
    assert rows(path, "SELECT count(*) FROM calls") == [(0,)]
    path.write_text("something else, long enough to be looked at by a database\n" * 10)
    refused = run("migrate")
    assert refused.exit_code == 2
    assert "VA437" in refused.output
