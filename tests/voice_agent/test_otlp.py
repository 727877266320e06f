"""Spans on the wire: a receiver that decodes OTLP's protobuf, and ones that fail or hang."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.voice_agent.test_spans import trace
from voice_agent.clock import ManualClock
from voice_agent.spans import otlp_spans
from voice_agent.tracing import Tracing

pytestmark = pytest.mark.unit


class Collector(ThreadingHTTPServer):
    """An OpenTelemetry collector, as far as spans over HTTP go. answer: a status, or None: it takes
    the request and never answers."""

    daemon_threads = True

    def __init__(self, answer: int | None = 200) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.took: list[tuple[str, ExportTraceServiceRequest]] = []
        self.asked = threading.Event()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.headers["content-type"] == "application/x-protobuf"
        self.server.took.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.server.asked.set()
        if self.server.answer is None:
            self.server.over.wait(20)
            return
        self.send_response(self.server.answer)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    server = Collector(getattr(request, "param", 200))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join(10)


def attributes(item: object) -> dict[str, object]:
    kinds = ("string_value", "int_value", "double_value", "bool_value")
    return {
        a.key: getattr(a.value, next(k for k in kinds if a.value.HasField(k)))
        for a in item.attributes  # type: ignore[attr-defined]
    }


def test_a_turn_arrives_as_one_trace(collector: Collector) -> None:
    sink = otlp_spans(collector.url + "/")
    tracing = Tracing([sink], ManualClock(), content=False, wall=lambda: 1_000_000.0)
    tracing.turn(trace())
    tracing.close()
    ((path, request),) = collector.took
    assert path == "/v1/traces"
    (resource,) = request.resource_spans
    assert attributes(resource.resource)["service.name"] == "voice-agent"
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    turn = spans["invoke_agent desk"]
    assert attributes(turn)["gen_ai.conversation.id"] == "c7"
    assert {"end_of_turn", "first_text", "chat qwen", "execute_tool clock"} <= spans.keys()
    for name, span in spans.items():
        assert span.trace_id == turn.trace_id
        assert span.parent_span_id == (b"" if span is turn else turn.span_id), name
        first, last = turn.start_time_unix_nano, turn.end_time_unix_nano
        assert first <= span.start_time_unix_nano <= span.end_time_unix_nano <= last, name
    stage = spans["end_of_turn"]
    took_ms = (stage.end_time_unix_nano - stage.start_time_unix_nano) / 1e6
    assert took_ms == pytest.approx(trace().stages_ms()["end_of_turn"], abs=0.2)
    assert "four" not in str(request), "no words of the call"


@pytest.mark.parametrize("collector", [503, 400, None], indirect=True)
def test_a_collector_that_fails_or_hangs_costs_a_call_nothing(collector: Collector) -> None:
    sink = otlp_spans(collector.url, timeout_s=0.2)
    tracing = Tracing([sink], ManualClock(), content=False, size=8)
    began = time.thread_time()
    for _ in range(200):
        tracing.turn(trace())
    spent = time.thread_time() - began
    tracing.close()
    assert collector.asked.wait(10)
    assert spent < 0.2, "CPU seconds of the calls' thread: it never waits for the collector"


def test_no_collector_at_all() -> None:
    sink = otlp_spans("http://127.0.0.1:1", timeout_s=0.2)
    tracing = Tracing([sink], ManualClock(), content=False)
    tracing.turn(trace())
    tracing.close()
    tracing.turn(trace())  # after its end too
