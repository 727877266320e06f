"""The figures of each system: rates with 95 % intervals, percentiles with their n, goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

from loadtest.report import quantile

from .scene import INTERRUPTIONS, NO_TURNS, Kind
from .score import Scored, Talked, Turned

ENOUGH = 60  # events before a goal can be met
Z = 1.959964


def wilson(k: int, n: int) -> tuple[float, float]:
    """95 % score interval of a rate (Wilson, 1927). Raises ValueError without events."""
    if n == 0:
        raise ValueError("no events")
    p, zz = k / n, Z * Z
    middle = (p + zz / (2 * n)) / (1 + zz / n)
    half = Z * sqrt(p * (1 - p) / n + zz / (4 * n * n)) / (1 + zz / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def rate(hits: Iterable[bool]) -> dict[str, Any]:
    """{rate, low, high, k, n}; rate None without events."""
    values = list(hits)
    k, n = sum(values), len(values)
    if not n:
        return {"rate": None, "low": None, "high": None, "k": 0, "n": 0}
    low, high = wilson(k, n)
    return {
        "rate": round(k / n, 4), "low": round(low, 4), "high": round(high, 4), "k": k, "n": n,
    }  # fmt: skip


def percentiles(values: Sequence[float | None]) -> dict[str, Any]:
    """{n, p50, p95, max}; p50 from 20 values on and p95 from 200 on, else None."""
    known = [v for v in values if v is not None]
    n = len(known)
    return {
        "n": n,
        "p50": round(quantile(known, 0.5)) if n >= 20 else None,
        "p95": round(quantile(known, 0.95)) if n >= 200 else None,
        "max": round(max(known)) if n else None,
    }


def figures(events: Sequence[Scored]) -> dict[str, Any]:
    """Everything that is reported of one system over one sort of events (human, or made)."""
    turned = [e for e in events if isinstance(e, Turned)]
    talked = [e for e in events if isinstance(e, Talked)]
    asked = [t for t in turned if t.kind is Kind.SMOOTH]
    cut_in = [t for t in talked if t.kind in INTERRUPTIONS]
    others = {k: [t for t in talked if t.kind is k and t.valid] for k in NO_TURNS}
    pauses = [p for t in turned for p in t.pauses]
    latency = percentiles([t.latency_ms for t in asked])
    stops = percentiles([t.stop_ms for t in cut_in if t.success])
    errors = [abs(t.error_words) for t in talked if t.error_words is not None]
    return {
        "pause_takeover": rate(taken for _, taken in pauses)["rate"],
        "turn_takeover": rate(t.taken for t in asked)["rate"],
        "interruption_success": rate(t.success for t in cut_in)["rate"],
        "stop_latency_ms_p95": stops["p95"],
        "false_stops": {
            str(k): rate(t.stopped for t in v)["rate"] for k, v in others.items() if v
        },
        "heard_word_error_p95": percentiles(errors)["p95"],
        "stuck": sum(e.stuck for e in events),
        "response_latency_ms": {"p50": latency["p50"], "p95": latency["p95"]},
        "detail": {
            "pause_takeover": {
                "all": rate(taken for _, taken in pauses),
                **_split(turned, lambda ts: rate(p[1] for t in ts for p in t.pauses)),
                "by_length": _by_length(pauses),
            },
            "turn_takeover": rate(t.taken for t in asked),
            "correction_answered": rate(t.taken for t in turned if t.kind is Kind.CORRECTION),
            "response_latency_ms": latency,
            "end_of_turn_wait_ms": percentiles([t.wait_ms for t in asked]),
            "rest_ms": percentiles([_rest(t) for t in asked]),
            "interruption_success": {
                "all": rate(t.success for t in cut_in),
                **_split(cut_in, lambda ts: rate(t.success for t in ts)),
            },
            "stop_latency_ms": stops,
            "yield_ms": percentiles([t.yield_ms for t in cut_in if t.valid]),
            "false_stops": {
                str(k): {
                    "all": rate(t.stopped for t in v),
                    **_split(v, lambda ts: rate(t.stopped for t in ts)),
                }
                for k, v in others.items() if v
            },
            "holds": {
                str(k): holds([t for t in talked if t.kind is k and t.valid])
                for k in (*INTERRUPTIONS, *NO_TURNS)
            },
            "resume_success": rate(
                h.rightly for v in others.values() for t in v for h in t.holds if h.resumed
            ),
            "heard_word_error": errors_of([t.error_words for t in talked]),
            "events": len(events),
            "void": sum(not t.valid for t in talked),
        },
    }  # fmt: skip


def _rest(turned: Turned) -> float | None:
    if turned.latency_ms is None or turned.wait_ms is None:
        return None
    return turned.latency_ms - turned.wait_ms


def _split(events: Sequence[Any], figure: Any) -> dict[str, Any]:
    details = sorted({e.detail for e in events})
    return {d: figure([e for e in events if e.detail == d]) for d in details if len(details) > 1}


def _by_length(pauses: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    bounds = ((250, 500), (500, 800), (800, 1300))
    return {
        f"{low}-{high} ms": rate(taken for ms, taken in pauses if low <= ms < high)
        for low, high in bounds
    }


def holds(events: Sequence[Talked]) -> dict[str, Any]:
    """How often and how long we fell silent to listen. share: of the events that had a hold."""
    spans = [h for t in events for h in t.holds]
    minutes = sum(t.speech_s for t in events) / 60
    lengths = percentiles([h.ms for h in spans])
    return {
        "n": len(spans),
        "per_minute": round(len(spans) / minutes, 2) if minutes else None,
        "share": rate(bool(t.holds) for t in events),
        "held_ms": lengths,
        "over_1200_ms": sum(h.ms > 1200 for h in spans),
    }


def errors_of(errors: Sequence[int | None]) -> dict[str, Any]:
    """Signed: remembered less played, in words."""
    known = [e for e in errors if e is not None]
    return {
        "n": len(known),
        "abs_p50": percentiles([abs(e) for e in known])["p50"],
        "abs_p95": percentiles([abs(e) for e in known])["p95"],
        "most_above": max(known, default=None),
        "most_below": min(known, default=None),
        "above_one": sum(e > 1 for e in known),
    }


def whole(systems: Mapping[str, Sequence[Scored]]) -> dict[str, Any]:
    """Per system: the human events' figures; a class that nobody recorded stands in from the made
    ones and is named in `made_classes`; all figures of made sound lie under `synthetic`."""
    out: dict[str, Any] = {}
    for name, events in systems.items():
        human = figures([e for e in events if e.human])
        made = figures([e for e in events if not e.human])
        missing = [k for k in made["false_stops"] if k not in human["false_stops"]]
        human["false_stops"] |= {k: made["false_stops"][k] for k in missing}
        human["stuck"] += made["stuck"]
        out[name] = {**human, "made_classes": missing, "synthetic": made}
    return out
