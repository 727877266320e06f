"""Records on their way out: one bounded queue, sinks that may be slow, full or broken."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from voice_agent.clock import ManualClock
from voice_agent.config import load_config
from voice_agent.errors import UsageError
from voice_agent.trace import Mark, TurnTrace
from voice_agent.tracing import JsonLines, Record, Tracing, open_tracing
from voice_agent.types import TurnId

pytestmark = pytest.mark.unit


def trace(index: int = 0) -> TurnTrace:
    t = TurnTrace(TurnId("c", index), transcript="my secret", outcome="spoken")
    t.mark(Mark.SPEECH_END, 10.0)
    return t


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Kept:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


class Stuck(Kept):
    """Takes one record and does not come back before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()

    def write(self, record: Record) -> None:
        self.entered.set()
        self.go.wait(30)
        super().write(record)


class Broken(Kept):
    def write(self, record: Record) -> None:
        raise OSError("the disk is full")


def test_a_turn_is_a_line_of_json_and_private(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "traces", rotate_bytes=1 << 20, keep=2)
    tracing = Tracing([sink], ManualClock(), content=False, wall=lambda: 500.0)
    tracing.turn(trace(3))
    tracing.close()
    path = tmp_path / "traces" / "turns.jsonl"
    (line,) = lines(path)
    assert (line["call"], line["turn"], line["transcript"]) == ("c", 3, "")
    assert line["zero_unix_s"] == 510.0
    assert path.stat().st_mode & 0o077 == 0


def test_content_is_there_when_it_is_allowed(tmp_path: Path) -> None:
    config = load_config(None, {"trace.folder": tmp_path, "privacy.content": True}).config
    tracing = open_tracing(config, ManualClock())
    assert tracing is not None
    tracing.turn(trace())
    tracing.close()
    (line,) = lines(tmp_path / "turns.jsonl")
    assert line["transcript"] == "my secret"


def test_nothing_asked_for_is_nothing_done() -> None:
    assert open_tracing(load_config().config, ManualClock()) is None


def test_a_stuck_sink_costs_records_and_no_time() -> None:
    stuck = Stuck()
    tracing = Tracing([stuck], ManualClock(), content=False, size=4)
    tracing.turn(trace(0))
    assert stuck.entered.wait(30)
    for n in range(1, 11):  # returns although the sink does not
        tracing.turn(trace(n))
    assert tracing.dropped == 6
    stuck.go.set()
    tracing.close()
    tracing.close()
    assert [r["turn"] for r in stuck.records] == [0, 1, 2, 3, 4]
    assert stuck.closed


def test_a_broken_sink_disturbs_no_other_and_complains_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept()
    tracing = Tracing([Broken(), kept], ManualClock(), content=False)
    with caplog.at_level(logging.ERROR):
        for n in range(3):
            tracing.turn(trace(n))
        tracing.close()
    assert len(kept.records) == 3
    assert len(caplog.records) == 1
    assert "Broken" in caplog.text


def test_full_files_are_set_aside_and_the_oldest_go(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path, rotate_bytes=300, keep=3, wall=lambda: 0.0)
    for n in range(12):
        sink.write({"turn": n, "pad": "x" * 100})
    sink.close()
    aside = sorted(tmp_path.glob("turns-*.jsonl"))
    assert len(aside) == 3
    kept = [line["turn"] for path in (*aside, tmp_path / "turns.jsonl") for line in lines(path)]
    assert kept == list(range(12 - len(kept), 12))
    assert all(path.stat().st_size <= 300 for path in aside)


def test_lines_are_appended_after_a_restart(tmp_path: Path) -> None:
    for n in range(2):
        sink = JsonLines(tmp_path, rotate_bytes=1 << 20, keep=3)
        sink.write({"turn": n})
        sink.close()
    assert lines(tmp_path / "turns.jsonl") == [{"turn": 0}, {"turn": 1}]


def test_a_folder_that_cannot_be_used_is_said_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as error:
        JsonLines(tmp_path / "file", rotate_bytes=1, keep=1)
    assert error.value.code == "VA433"
