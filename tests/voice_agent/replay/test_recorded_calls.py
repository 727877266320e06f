"""Calls of real models and recorded people (tests/data/calls) decide what they did."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from voice_agent.cli.app import app
from voice_agent.cli.replay import run_replay
from voice_agent.events import ReplyDone, ReplyStatus, TurnCommitted
from voice_agent.replay.compare import rows
from voice_agent.replay.play import replay
from voice_agent.replay.tape import load

pytestmark = pytest.mark.unit

CALLS = Path(__file__).parents[2] / "data" / "calls"
MAX_BYTES = 400_000


def test_there_are_three_and_they_are_small() -> None:
    files = {path.stem: path.stat().st_size for path in CALLS.glob("*.call")}
    assert files.keys() >= {"clean", "barge_in", "echo"}
    assert max(files.values()) < MAX_BYTES


@pytest.mark.parametrize("path", sorted(CALLS.glob("*.call")), ids=lambda path: path.stem)
def test_it_decides_what_it_did(path: Path) -> None:
    """`voice-agent replay FILE` prints what differs; --save FILE accepts it."""
    recorded = load(path)
    replayed = replay(recorded)
    found = rows(recorded.tape.decisions, replayed.decisions)
    assert [row for row in found if not row.same] == []
    assert len(found) > 5


def test_the_clean_call_has_two_answers_and_no_cut() -> None:
    events = replay(load(CALLS / "clean.call")).events
    assert len([e for e in events if isinstance(e, TurnCommitted) and e.text]) == 2
    assert {e.status for e in events if isinstance(e, ReplyDone)} == {ReplyStatus.COMPLETED}


def test_the_barge_in_is_one() -> None:
    events = replay(load(CALLS / "barge_in.call")).events
    cut = [e for e in events if isinstance(e, ReplyDone) and e.status is ReplyStatus.INTERRUPTED]
    assert len(cut) == 1
    assert 0 < len(cut[0].heard) < len(cut[0].text)


def test_our_own_echo_interrupts_nothing() -> None:
    events = replay(load(CALLS / "echo.call")).events
    assert ReplyStatus.INTERRUPTED not in {e.status for e in events if isinstance(e, ReplyDone)}
    assert len([e for e in events if isinstance(e, TurnCommitted) and e.text]) == 1


def test_a_failing_call_becomes_a_fixture_in_one_command(tmp_path: Path) -> None:
    failing, fixtures = tmp_path / "odd.call", tmp_path / "fixtures"
    fixtures.mkdir()
    shutil.copy(CALLS / "clean.call", failing)
    recorded = load(failing)
    recorded.tape.decisions.pop()
    from voice_agent.replay.tape import save

    save(recorded, failing)
    run = CliRunner().invoke(app, ["replay", str(failing), "--save", str(fixtures)])
    assert run.exit_code == 1, run.output
    assert "commit" in run.output
    assert run_replay(fixtures / "odd.call", None, Console(quiet=True))
    assert (fixtures / "odd.call").stat().st_size < MAX_BYTES
