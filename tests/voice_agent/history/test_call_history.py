"""Live calls into a history: from the one trace, bounded, and never in a call's way."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.fakes import Scene, say, silence
from tests.support.history import FAST, call, ended, history, rows, turn, url, wait_until
from voice_agent.clock import ManualClock
from voice_agent.config import load_config
from voice_agent.errors import UsageError
from voice_agent.events import EndReason, TurnTraced
from voice_agent.history.entries import CallEntry, Entry, TurnEntry
from voice_agent.history.history import History, Keep, open_history
from voice_agent.history.schema import COPIED
from voice_agent.history.store import Store
from voice_agent.line import TRANSPORT
from voice_agent.trace_record import CONTENT, record_of

pytestmark = pytest.mark.unit

QUESTION = "what is the weather"
ANSWER = "It is raining elephants."


def remembered(path: Path, *, content: bool = False, transport: str = "") -> tuple[Scene, History]:
    """A call of two turns whose history is in the file."""
    scene = Scene(ANSWER, greeting="Hello there.")
    kept = History(
        Store(url(path)),
        scene.stack.clock,
        Keep(1e6, 1 << 30, content),
        pace=FAST,
        wall=lambda: 1_000_000.0,
    )
    kept.start()
    scene.stack.history = kept
    if transport:
        TRANSPORT.set(transport)
    parts = (silence(900), say(QUESTION), silence(4000), say("tell me more"))
    scene.play(*parts, tail_ms=4000)
    kept.close()
    return scene, kept


def test_a_turns_row_is_its_trace_and_nothing_else(tmp_path: Path) -> None:
    scene, kept = remembered(tmp_path / "h.db")
    traces = [event.trace for event in scene.of(TurnTraced)]
    assert len(traces) == 2
    columns = ", ".join(COPIED)
    query = f"SELECT call, n, trace, {columns} FROM turns ORDER BY n"
    for n, (row, trace) in enumerate(zip(rows(tmp_path / "h.db", query), traces, strict=True), 1):
        record = record_of(trace, content=False, unix_s=kept.zero_unix_s)
        same = {name: value for name, value in record.items() if name not in CONTENT}
        assert row[:2] == (trace.turn.call, n)
        assert json.loads(row[2]) == json.loads(json.dumps(same))
        assert row[3:] == tuple(record[name] for name in COPIED)


def test_a_call_has_its_agent_transport_times_and_outcome(tmp_path: Path) -> None:
    before = TRANSPORT.get()
    try:
        scene, _ = remembered(tmp_path / "h.db", transport="sip")
    finally:
        TRANSPORT.set(before)
    ((name, agent, by, began, over, outcome, fault),) = rows(
        tmp_path / "h.db", "SELECT * FROM calls"
    )
    assert scene.call is not None
    assert (name, agent, by, fault) == (scene.call.id, "test", "sip", None)
    assert outcome == EndReason.CALLER_HUNG_UP.value
    assert over - began == pytest.approx(scene.frames[-1][0] - scene.frames[0][0], abs=0.1)


@pytest.mark.parametrize("content", [False, True])
def test_words_are_there_only_when_they_may_be(tmp_path: Path, content: bool) -> None:
    remembered(tmp_path / "h.db", content=content)
    raw = (tmp_path / "h.db").read_bytes()
    for word in (b"weather", b"elephants"):
        assert (word in raw) == content
    assert b"Be brief." not in raw  # the agent's instructions
    (said,) = rows(tmp_path / "h.db", "SELECT transcript, reply_text, heard FROM turns WHERE n = 1")
    assert said == ((QUESTION, ANSWER, ANSWER) if content else (None, None, None))


class Blocked:
    """A disk that does not come back before it is let go."""

    name = "blocked"

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.written: list[Entry] = []

    def prepare(self) -> None: ...

    def forget(self, before: float, most: int) -> int:
        return 0

    def write(self, entries: Sequence[Entry]) -> None:
        self.entered.set()
        assert self.go.wait(60)
        self.written += entries

    def close(self) -> None: ...


def test_a_disk_that_hangs_costs_records_and_they_are_counted() -> None:
    blocked = Blocked()
    kept = history(blocked, size=8)  # type: ignore[arg-type]
    kept.start()
    kept.put(call())
    assert blocked.entered.wait(60)
    for n in range(1, 21):  # returns although the disk does not
        kept.put(turn(n))
    assert (kept.dropped, kept.gauges()["history_waiting"]) == (13, 8)
    blocked.go.set()
    kept.close()
    assert [e.n for e in blocked.written if isinstance(e, TurnEntry)] == list(range(1, 8))


class Failing(Store):
    """A disk that fails while it is told to."""

    fails = True
    tries = 0

    def write(self, entries: Sequence[Entry]) -> None:
        self.tries += 1
        if self.fails:
            raise OSError(28, "No space left on device")
        super().write(entries)


def test_an_outage_is_said_once_and_over_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing(url(tmp_path / "h.db"))
    kept = history(store, size=4)
    with caplog.at_level(logging.INFO):
        kept.start()
        kept.put(call())
        wait_until(lambda: store.tries >= 3)
        for n in range(1, 7):
            kept.put(turn(n))
        assert kept.gauges()["history_up"] == 0.0
        store.fails = False
        wait_until(lambda: kept.gauges()["history_up"] == 1.0)
        kept.put(ended())
        kept.close()
    texts = [r.getMessage() for r in caplog.records if r.name.endswith("history.history")]
    assert len(texts) == 2
    assert "No space left on device" in texts[0]
    assert "3 records were dropped" in texts[1]
    assert rows(tmp_path / "h.db", "SELECT n FROM turns ORDER BY n") == [(1,), (2,), (3,)]
    assert rows(tmp_path / "h.db", "SELECT outcome FROM calls") == [("caller_hung_up",)]
    assert kept.gauges()["history_written_total"] == 5.0


def test_a_record_that_is_not_taken_stops_no_other(tmp_path: Path) -> None:
    kept = history(Store(url(tmp_path / "h.db")))
    kept.put(call())
    for n in range(1, 8):
        good = turn(n)
        broken = TurnEntry(good.call, n, {**good.record, "decisions": object()})
        kept.put(broken if n == 4 else good)
    kept.start()
    kept.close()
    assert [n for (n,) in rows(tmp_path / "h.db", "SELECT n FROM turns")] == [1, 2, 3, 5, 6, 7]
    assert (kept.rejected, kept.written, kept.failures) == (1, 7, 0)


def test_text_no_database_takes_is_stored_without_what_it_does_not_take(tmp_path: Path) -> None:
    kept = history(Store(url(tmp_path / "h.db")), content=True)
    kept.put(turn(1, content=True, words="a\0b \ud800 c"))
    kept.start()
    kept.close()
    assert rows(tmp_path / "h.db", "SELECT transcript FROM turns") == [("ab ? c",)]


def frames(scene: Scene) -> list[tuple[float, bytes]]:
    return [(at, tick.pcm.tobytes()) for at, tick in scene.frames]


def test_a_call_sounds_the_same_with_a_history_that_fails(tmp_path: Path) -> None:
    parts = (silence(900), say(QUESTION))
    without = Scene(ANSWER, greeting="Hello there.").play(*parts, tail_ms=4000)
    scene = Scene(ANSWER, greeting="Hello there.")
    store = Failing(url(tmp_path / "h.db"))
    scene.stack.history = kept = history(store, size=1)
    kept.start()
    scene.play(*parts, tail_ms=4000)
    kept.close()
    assert store.tries
    assert kept.dropped >= 2
    assert frames(scene) == frames(without)
    assert scene.reason == without.reason


def test_what_is_asked_for_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    off = load_config(None, {"history.enabled": False}).config
    assert open_history(off, ManualClock()) is None
    flags = {"history.enabled": True, "history.max_mb": 3, "history.keep_days": 2}
    on = load_config(None, flags).config
    kept = open_history(on, ManualClock())
    assert kept is not None
    kept.put(CallEntry("c", "a", "t", 1.0))
    kept.close()
    assert kept.keep == Keep(2.0, 3 << 20, False)
    assert (tmp_path / "voice-agent" / "history.db").stat().st_mode & 0o077 == 0


def test_words_need_the_one_switch(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"privacy\.content") as caught:
        load_config(None, {"history.transcripts": True})
    assert caught.value.code == "VA432"
    flags = {"history.transcripts": True, "privacy.content": True}
    assert load_config(None, flags).config.history.transcripts
