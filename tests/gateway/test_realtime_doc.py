"""docs/REALTIME.md says which protocol events each event of a call becomes: hold it to that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.gateway.test_session import session
from voice_agent.events import (
    CallerSilent,
    CallFault,
    Event,
    Partial,
    ReplyDone,
    ReplySounds,
    ReplyStarted,
    ReplyStatus,
    ReplyText,
    SpeechStarted,
    SpeechStopped,
    ToolStarted,
    TurnCommitted,
    TurnReopened,
)
from voice_agent.types import ReplyId, TurnId

pytestmark = pytest.mark.unit

DOC = Path(__file__).parents[2] / "docs" / "REALTIME.md"
TURN = TurnId("c", 0)
REPLY = ReplyId("c", 0, TURN)
CUT = ReplyId("c", 1)
TOOL = ToolStarted(REPLY, "call_0_0", "look", "{}", by_client=True)
SCRIPT: list[tuple[str, Event | None]] = [
    ("SpeechStarted", SpeechStarted(TURN, 100)),
    ("Partial", Partial(TURN, "what is", " the")),
    ("SpeechStopped", SpeechStopped(TURN, 900)),
    ("TurnCommitted", TurnCommitted(TURN, "what is the time")),
    ("ReplyStarted", ReplyStarted(REPLY)),
    ("ReplyText (the first)", ReplyText(REPLY, "It is ")),
    ("ReplyText (the next)", ReplyText(REPLY, "four.")),
    ("a frame of the voice", None),
    ("ToolStarted (the client's)", TOOL),
    ("ReplyDone", ReplyDone(REPLY, ReplyStatus.COMPLETED, "It is four.", "It is four.", 20)),
    ("TurnReopened", TurnReopened(TURN)),
    ("CallerSilent", CallerSilent(TURN.next(), 900, 6900)),
    ("CallFault", CallFault("VA300", "broken")),
]
OVER_WEBRTC: list[tuple[str, Event]] = [
    ("", ReplyStarted(REPLY)),
    ("", ReplyText(REPLY, "It is four.")),
    ("ReplySounds", ReplySounds(REPLY)),
    ("ReplyDone (completed)", ReplyDone(REPLY, ReplyStatus.COMPLETED, "It is four.", "", 20)),
    ("", ReplyStarted(CUT)),
    ("", ReplyText(CUT, "It is four.")),
    ("", ReplySounds(CUT)),
    ("ReplyDone (cut)", ReplyDone(CUT, ReplyStatus.INTERRUPTED, "It is four.", "It is", 20)),
]


def table() -> dict[str, list[str]]:
    rows = {}
    for line in DOC.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2:
            rows[cells[0]] = re.findall(r"`([a-z_.]+)`", cells[1])
    return rows


def test_the_table_is_what_happens() -> None:
    rows = table()
    s, box, call = session(lead_ms=0, reply_s=0.02)
    for name, event in SCRIPT:
        before = len(box.events)
        if event is not None:
            s.on_event(event)
        else:
            # a frame needs a reply that the call itself plays: its first frame is its only one
            call._n_replies = 1
            known = s._responses._known
            known[ReplyId("call0", 1)] = known[REPLY]
            call.on_event = lambda event: None
            call._begin("x", None)
            s.tick()
        assert [e["type"] for e in box.events[before:]] == rows[name], name


def test_the_table_of_webrtc_is_what_happens_there_besides() -> None:
    rows = table()
    s, box, _ = session(carries_audio=False)
    for name, event in OVER_WEBRTC:
        before = len(box.events)
        s.on_event(event)
        told = [e["type"] for e in box.events[before:]]
        if name:
            assert rows[name]
            assert told[-len(rows[name]) :] == rows[name], name
    assert box.of("response.output_audio.delta") == []
