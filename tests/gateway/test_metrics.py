"""Stable names: what /metrics has is what docs/METRICS.md says, with the same kinds and labels."""

from __future__ import annotations

import pytest

from gateway.metrics import Metrics
from tests.support.metric_names import exposed, promised
from voice_agent.trace import Mark, TurnTrace
from voice_agent.types import TurnId

pytestmark = pytest.mark.unit


def test_the_gateways_own_metrics_are_documented() -> None:
    found = exposed(Metrics(dict).render().decode())
    known = promised()
    assert len(found) > 20
    assert {name: known[name].kind for name in found if name in known} == found, "docs/METRICS.md"


def test_labels_are_documented() -> None:
    metrics = Metrics(dict)
    for name, promise in promised().items():
        collectors = metrics.registry._names_to_collectors
        own = collectors.get(name.removesuffix("_total"))
        if own is not None and hasattr(own, "_labelnames"):
            assert own._labelnames == promise.labels, name


def test_a_number_that_only_grows_is_a_counter() -> None:
    read = {"things_total": 3.0, "engine_kv_blocks_total": 8.0, "things": 1.0}
    text = Metrics(lambda: read).render().decode()
    kinds = exposed(text)
    assert kinds["voice_agent_things_total"] == "counter"
    assert kinds["voice_agent_engine_kv_blocks_total"] == "gauge"
    assert kinds["voice_agent_things"] == "gauge"
    assert "voice_agent_things_total 3.0" in text
    assert "_created" not in text


def test_a_turn_is_counted_from_its_record() -> None:
    trace = TurnTrace(TurnId("c", 0), outcome="no_input: noise")
    trace.mark(Mark.SPEECH_END, 1.0)
    trace.mark(Mark.FIRST_SOUND, 1.45)
    metrics = Metrics(dict)
    metrics.turn(trace)
    text = metrics.render().decode()
    assert 'voice_agent_turns_total{outcome="no_input"} 1.0' in text
    assert "voice_agent_voice_to_voice_seconds_count 1.0" in text
    assert 'voice_agent_voice_to_voice_seconds_bucket{le="0.4"} 0.0' in text
    assert 'voice_agent_voice_to_voice_seconds_bucket{le="0.5"} 1.0' in text
