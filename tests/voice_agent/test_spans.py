"""A turn's record as OpenTelemetry spans, seen by the SDK's own in-memory exporter."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai

from voice_agent.decisions import Decision
from voice_agent.errors import UsageError
from voice_agent.spans import Spans, otlp_spans
from voice_agent.trace import Mark, ToolSpan, TurnTrace
from voice_agent.trace_record import record_of
from voice_agent.types import TurnId

pytestmark = pytest.mark.unit


def trace() -> TurnTrace:
    turn = TurnId("c7", 2, 1)
    t = TurnTrace(turn, transcript="what time is it", reply_text="It is four.", heard="It is")
    t.outcome, t.agent, t.model, t.backend = "spoken", "desk", "qwen", "embedded"
    t.prompt_tokens, t.cached_tokens, t.output_tokens = 100, 80, 12
    t.marks = {
        Mark.SPEECH_START: 8.0, Mark.SPEECH_END: 10.0, Mark.COMMIT: 10.25, Mark.LLM_SUBMIT: 10.1,
        Mark.LLM_FIRST_TEXT: 10.3, Mark.LLM_DONE: 10.9, Mark.FIRST_SOUND: 10.5,
        Mark.LAST_SOUND: 12.0,
    }  # fmt: skip
    t.tools = [ToolSpan("clock", "done", 10.3, 200.0)]
    t.decided(Decision("commit", turn, 10.25, "ended", {"silence_ms": 240, "p_complete": 0.9}))
    return t


def spans(*, content: bool) -> dict[str, Any]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    sink = Spans(provider)
    sink.write(record_of(trace(), content=content, unix_s=1_000_000.0))
    found = {span.name: span for span in exporter.get_finished_spans()}
    sink.close()
    return found


def test_a_turn_is_one_trace_with_its_stages_model_and_tools() -> None:
    found = spans(content=False)
    turn, chat = found["invoke_agent desk"], found["chat qwen"]
    assert {"end_of_turn", "first_text", "execute_tool clock"} < found.keys()
    assert turn.parent is None
    for name, span in found.items():
        if span is not turn:
            assert span.parent.span_id == turn.context.span_id, name
            assert turn.start_time <= span.start_time <= span.end_time <= turn.end_time, name
    assert turn.start_time == pytest.approx(1_000_008.0e9, abs=1e6)
    assert chat.end_time - chat.start_time == pytest.approx(0.8e9, abs=1e6)
    (commit,) = turn.events
    assert (commit.name, commit.attributes["silence_ms"]) == ("commit", 240)
    assert commit.timestamp == pytest.approx(1_000_010.25e9, abs=1e6)


def test_attributes_are_those_of_the_genai_conventions() -> None:
    found = spans(content=False)
    chat, tool = found["chat qwen"].attributes, found["execute_tool clock"].attributes
    assert chat[gen_ai.GEN_AI_OPERATION_NAME] == "chat"
    assert chat[gen_ai.GEN_AI_PROVIDER_NAME] == "voice_agent"
    assert chat[gen_ai.GEN_AI_REQUEST_MODEL] == "qwen"
    assert chat[gen_ai.GEN_AI_CONVERSATION_ID] == "c7"
    assert chat[gen_ai.GEN_AI_USAGE_INPUT_TOKENS] == 100
    assert chat[gen_ai.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS] == 80
    assert chat[gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS] == 12
    assert tool[gen_ai.GEN_AI_TOOL_NAME] == "clock"
    assert found["invoke_agent desk"].attributes[gen_ai.GEN_AI_AGENT_NAME] == "desk"


def test_words_only_when_they_are_allowed() -> None:
    told = str([dict(s.attributes) for s in spans(content=False).values()])
    assert "four" not in told
    assert "time" not in told
    chat = spans(content=True)["chat qwen"].attributes
    (asked,) = json.loads(chat[gen_ai.GEN_AI_INPUT_MESSAGES])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "what time is it"}]}
    assert "It is four." in chat[gen_ai.GEN_AI_OUTPUT_MESSAGES]


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match=r"voice-agent\[otel\]") as error:
        otlp_spans("http://127.0.0.1:4318")
    assert error.value.code == "VA434"
