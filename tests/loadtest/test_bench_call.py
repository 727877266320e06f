"""What is read from the server of a live call: turns from its log, figures from its metrics."""

from __future__ import annotations

import json

import pytest

from loadtest.bench.llm.call import prefix, turn_lines
from loadtest.bench.llm.up import metric
from loadtest.bench.peers.process import ServerFailed
from voice_agent.logs import turn_fields
from voice_agent.trace import TurnTrace
from voice_agent.types import TurnId

pytestmark = pytest.mark.unit


def line(call: str, turn: int, prompt: int, cached: int) -> str:
    trace = TurnTrace(TurnId(call, turn, 0), prompt_tokens=prompt, cached_tokens=cached)
    return json.dumps({"message": "turn", **turn_fields(trace, content=False)})


def test_turns_are_found_among_other_lines_and_split_into_first_and_later() -> None:
    log = "\n".join(
        [
            "a warning in plain text",
            json.dumps({"message": "engine warm"}),
            line("a", 0, 40, 24),
            line("b", 0, 40, 24),
            line("a", 1, 100, 90),
            line("a", 2, 0, 0),
        ]
    )
    turns = turn_lines(log)
    assert [turn["call"] for turn in turns] == ["a", "b", "a"], "nobody asked the model in the last"
    out = prefix(turns)
    assert out["first"]["new_tokens"]["n"] == 2
    assert out["first"]["new_tokens"]["p50"] == 16
    assert out["later"]["prompt_tokens"]["p50"] == 100
    assert out["later"]["cached_percent"] == 90.0


def test_a_metric_is_found_by_its_whole_name() -> None:
    text = "# HELP voice_agent_engine_steps x\nvoice_agent_engine_steps_total 7.0\n"
    assert metric(text, "engine_steps_total") == 7.0
    with pytest.raises(ServerFailed, match="no engine_steps"):
        metric(text, "engine_steps")
