"""Prometheus metrics, in a registry of their own. Latencies come from the turn's trace only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from engine.histogram import HistogramSnapshot
from voice_agent.trace import Mark, TurnTrace

SECONDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
LATENESS = (-1.0, -0.5, -0.2, -0.1, 0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
Distributions = Mapping[str, Mapping[str, HistogramSnapshot]]
"""Metric name -> class of request -> its values."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]


NOT_COUNTED = frozenset({"engine_kv_blocks_total"})
"""An amount, for all its name."""


class _Gauges(Collector):
    """Reads the stack's numbers at scrape time, so that nothing has to push them. A name that ends
    in `_total` is a counter's."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for name, value in sorted(self._read().items()):
            metric = f"voice_agent_{name}"
            counted = name.endswith("_total") and name not in NOT_COUNTED
            kind = CounterMetricFamily if counted else GaugeMetricFamily
            family = kind(metric, name.removesuffix("_total").replace("_", " "))
            family.add_metric([], value)
            yield family


class _Histograms(Collector):
    """Reads the distributions that the engine keeps, at scrape time."""

    def __init__(self, read: Callable[[], Distributions]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for name, by_class in sorted(self._read().items()):
            metric = f"voice_agent_{name}"
            family = HistogramMetricFamily(metric, name.replace("_", " "), labels=["class"])
            for kind, snapshot in by_class.items():
                sums = list(accumulate(snapshot.counts))
                bounds = [*map(str, snapshot.bounds), "+Inf"]
                buckets = list(zip(bounds, sums, strict=True))
                family.add_metric([kind], buckets, snapshot.total)
            yield family


class Metrics:
    """Owns the registry. `gauges` and `histograms` are read at each scrape."""

    def __init__(
        self,
        gauges: Callable[[], Mapping[str, float]],
        histograms: Callable[[], Distributions] = dict,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        r = self.registry
        self.calls_ended = Counter(
            "voice_agent_calls_ended", "calls by transport and reason", ["transport", "reason"],
            registry=r,
        )  # fmt: skip
        self.calls_live = Gauge(
            "voice_agent_calls_live", "live calls by transport", ["transport"], registry=r
        )
        self.turns = Counter("voice_agent_turns", "turns by outcome", ["outcome"], registry=r)
        self.interruptions = Counter(
            "voice_agent_interruptions", "replies the caller cut short", registry=r
        )
        self.voice_to_voice = Histogram(
            "voice_agent_voice_to_voice_seconds",
            "caller's last voiced sample to our first audible frame",
            registry=r, buckets=SECONDS,
        )  # fmt: skip
        self.lateness = Histogram(
            "voice_agent_first_sound_lateness_seconds", "first sound against the turn's deadline",
            registry=r, buckets=LATENESS,
        )  # fmt: skip
        self.barge_in = Histogram(
            "voice_agent_barge_in_stop_seconds",
            "caller's first voiced sample to our last audible frame",
            registry=r, buckets=(0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0),
        )  # fmt: skip
        self.stage = Histogram(
            "voice_agent_stage_seconds", "time in each stage of a turn", ["stage"],
            registry=r, buckets=SECONDS,
        )  # fmt: skip
        self.tokens = Counter(
            "voice_agent_turn_tokens",
            "tokens by kind: prompt, cached, output, wasted, early, taken_back", ["kind"],
            registry=r,
        )  # fmt: skip
        self.partials = Counter("voice_agent_partials", "partial transcription passes", registry=r)
        self.protocol_errors = Counter(
            "voice_agent_protocol_errors", "error events sent to clients", ["code"], registry=r
        )
        self.line_losses = Counter(
            "voice_agent_line_losses",
            "lost: calls that wait for their line; back: it came back by itself; resumed: the page "
            "came back over another; expired: it did not in time",
            ["what"], registry=r,
        )  # fmt: skip
        self.slow_clients = Counter(
            "voice_agent_slow_clients", "clients disconnected for not reading", registry=r
        )
        self.tool_runs = Counter(
            "voice_agent_tool_runs", "runs of tools: done, failed, late, cancelled", ["outcome"],
            registry=r,
        )  # fmt: skip
        self.http_requests = Counter(
            "voice_agent_http_requests", "requests of the HTTP API by route and status",
            ["route", "status"], registry=r,
        )  # fmt: skip
        self.media_frames = Counter(
            "voice_agent_media_frames", "caller frames by how they were got", ["flag"], registry=r
        )
        self.echo = Counter(
            "voice_agent_echo", "what was found out about a line's echo of our own voice",
            ["transport", "verdict"], registry=r,
        )  # fmt: skip
        self.sip_refused = Counter(
            "voice_agent_sip_refused", "telephone calls turned away: busy, not_allowed", ["why"],
            registry=r,
        )  # fmt: skip
        self.reloads = Counter(
            "voice_agent_config_reloads", "configurations read again: taken, refused", ["outcome"],
            registry=r,
        )  # fmt: skip
        ProcessCollector(registry=r)
        r.register(_Gauges(gauges))
        r.register(_Histograms(histograms))

    def turn(self, trace: TurnTrace) -> None:
        """Count one finished turn. Outcomes carry a reason after a colon; the label does not."""
        self.turns.labels(trace.outcome.partition(":")[0] or "unknown").inc()
        if trace.interrupted:
            self.interruptions.inc()
        if (v2v := trace.voice_to_voice_ms) is not None:
            self.voice_to_voice.observe(v2v / 1000.0)
        if (late := trace.lateness_ms) is not None:
            self.lateness.observe(late / 1000.0)
        stop = trace.span_ms(Mark.BARGE_IN_ONSET, Mark.LAST_FRAME)
        if stop is not None:
            self.barge_in.observe(max(0.0, stop) / 1000.0)
        for name, ms in trace.stages_ms().items():
            self.stage.labels(name).observe(ms / 1000.0)
        for kind, n in (
            ("prompt", trace.prompt_tokens), ("cached", trace.cached_tokens),
            ("output", trace.output_tokens), ("wasted", trace.wasted_tokens),
            ("early", trace.early_tokens), ("taken_back", trace.taken_back_tokens),
        ):  # fmt: skip
            self.tokens.labels(kind).inc(n)
        self.partials.inc(trace.partials)

    def render(self) -> bytes:
        return generate_latest(self.registry)
