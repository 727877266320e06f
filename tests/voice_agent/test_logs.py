"""Log lines: one per turn, no content by default, two formats."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from voice_agent import logs
from voice_agent.events import EndReason
from voice_agent.trace import Mark, TurnTrace
from voice_agent.types import TurnId

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def keep_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)


def trace() -> TurnTrace:
    t = TurnTrace(TurnId("c1", 3, 1), transcript="my secret", reply_text="your secret")
    t.outcome = "spoken"
    t.mark(Mark.SPEECH_END, 10.0)
    t.mark(Mark.FIRST_SOUND, 10.5)
    return t


def test_a_turn_is_one_json_line_without_content() -> None:
    out = io.StringIO()
    logs.setup("json", stream=out)
    logs.turn_done(trace())
    (line,) = out.getvalue().splitlines()
    body = json.loads(line)
    assert body["message"] == "turn"
    assert (body["call"], body["turn"], body["revision"]) == ("c1", 3, 1)
    assert body["voice_to_voice_ms"] == 500
    assert "secret" not in line


def test_content_only_when_asked_for() -> None:
    out = io.StringIO()
    logs.setup("text", stream=out)
    logs.turn_done(trace(), content=True)
    assert 'transcript="my secret"' in out.getvalue()


def test_a_calls_end_has_its_reason() -> None:
    out = io.StringIO()
    logs.setup("text", stream=out)
    logs.call_ended("c1", EndReason.IDLE_TIMEOUT, duration_s=12.34, turns=2)
    (line,) = out.getvalue().splitlines()
    assert "call ended" in line
    assert "reason=idle_timeout" in line
    assert "duration_s=12.3" in line


def test_an_exception_stays_in_its_record() -> None:
    out = io.StringIO()
    logs.setup("json", stream=out)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("x").exception("it failed", extra={"call": "c9"})
    body = json.loads(out.getvalue())
    assert body["call"] == "c9"
    assert "ValueError: boom" in body["exception"]


def test_setup_twice_prints_once() -> None:
    out = io.StringIO()
    logs.setup(stream=io.StringIO())
    logs.setup(stream=out)
    logging.getLogger("x").warning("hello")
    assert out.getvalue().count("hello") == 1
