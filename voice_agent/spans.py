"""Turn records as OpenTelemetry spans, after the fact, with the GenAI semantic conventions.

    invoke_agent NAME      the turn: first to last hand-over; an event for each decision
      STAGE                each of `trace.STAGES`
      chat MODEL           the language model
      execute_tool NAME    each tool

Needs the extra `otel` (opentelemetry-sdk and its OTLP exporter over HTTP).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .trace import STAGES, Mark

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

SCOPE = "voice_agent"
TIMEOUT_S = 5.0
"""For one batch, and for the last one at the end."""
SPEAKING = {"embedded": "voice_agent"}
"""Providers' names by backend; every other backend speaks OpenAI's protocol."""


class Spans:
    """Writes spans of one provider, which it shuts down at the end."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer(SCOPE)

    def write(self, record: Mapping[str, Any]) -> None:
        """One turn's spans. The record has `zero_unix_s`."""
        marks: Mapping[str, float] = record["marks"]
        if not marks:
            return
        begin, end = min(marks.values()), max(marks.values())
        turn = self._start(f"invoke_agent {record['agent']}", None, record, begin)
        turn.set_attributes(_turn_attributes(record))
        for d in record["decisions"]:
            facts = {"cause": d["cause"], "revision": d["revision"], **d["why"]}
            turn.add_event(d["what"], facts, _ns(record, d["at_ms"]))
        for name, first, last in STAGES:
            if first in marks and last in marks:
                self._start(name, turn, record, marks[first]).end(_ns(record, marks[last]))
        self._chat(turn, record, marks)
        for tool in record["tools"]:
            span = self._start(f"execute_tool {tool['name']}", turn, record, tool["at_ms"])
            span.set_attributes(
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": tool["name"],
                    "voice_agent.outcome": tool["outcome"],
                }
            )
            span.end(_ns(record, tool["at_ms"] + tool["took_ms"]))
        turn.end(_ns(record, end))

    def close(self) -> None:
        self._provider.shutdown()

    def _chat(self, turn: Span, record: Mapping[str, Any], marks: Mapping[str, float]) -> None:
        asked = marks.get(Mark.LLM_SUBMIT)
        if asked is None:
            return
        done = marks.get(Mark.LLM_DONE, marks.get(Mark.LAST_SOUND, asked))
        span = self._start(f"chat {record['model']}".strip(), turn, record, asked)
        span.set_attributes(_chat_attributes(record))
        if Mark.LLM_FIRST_TEXT in marks:
            at = _ns(record, marks[Mark.LLM_FIRST_TEXT])
            span.add_event("first_text", timestamp=at)
        span.end(_ns(record, max(done, asked)))

    def _start(
        self, name: str, parent: Span | None, record: Mapping[str, Any], at_ms: float
    ) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context, start_time=_ns(record, at_ms))


def _turn_attributes(record: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "turn", "revision", "outcome", "interrupted", "fallback", "prompt_version", "partials",
        "confirmed_words", "wasted_tokens", "wasted_voice_ms", "unheard_voice_ms",
        "early_tokens", "taken_back_tokens", "early_refused", "echo",
        "reply_words", "heard_words", "voice_to_voice_ms", "lateness_ms",
    )  # fmt: skip
    own = {f"voice_agent.{n}": record[n] for n in names if record[n] not in (None, "")}
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": record["agent"],
        "gen_ai.conversation.id": record["call"],
        **own,
    }
    if record["heard"]:
        attributes["voice_agent.heard"] = record["heard"]
    return attributes


def _chat_attributes(record: Mapping[str, Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": SPEAKING.get(record["backend"], "openai"),
        "gen_ai.request.model": record["model"],
        "gen_ai.conversation.id": record["call"],
        "gen_ai.usage.input_tokens": record["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": record["cached_tokens"],
        "gen_ai.usage.output_tokens": record["output_tokens"],
        "voice_agent.backend": record["backend"],
    }
    for name, role, text in (
        ("gen_ai.input.messages", "user", record["transcript"]),
        ("gen_ai.output.messages", "assistant", record["reply_text"]),
    ):
        if text:
            message = {"role": role, "parts": [{"type": "text", "content": text}]}
            attributes[name] = json.dumps([message], ensure_ascii=False)
    return attributes


def _ns(record: Mapping[str, Any], at_ms: float) -> int:
    """Unix nanoseconds."""
    return int((record["zero_unix_s"] + at_ms / 1000.0) * 1e9)


def otlp_spans(endpoint: str, timeout_s: float = TIMEOUT_S) -> Spans:
    """Spans to a collector over OTLP/HTTP, sent in batches by a thread of the SDK's; what it does
    not take in time is lost. Raises UsageError VA434 without the extra `otel`."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise UsageError(
            "trace.otlp needs OpenTelemetry's SDK: pip install 'voice-agent[otel]'", code="VA434"
        ) from e
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=timeout_s)
    provider = TracerProvider(resource=Resource.create({"service.name": "voice-agent"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Spans(provider)
