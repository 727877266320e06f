"""A run's figures as text that a person reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Row = Mapping[str, Any]


def table(body: Row) -> list[str]:
    """Lines. `~` stands before a percentile that too few turns support; `>` where answers that
    never came are in it."""
    return [*_head(body), "", *_callers(body), "", *_server(body), *_groups(body), *_notes(body)]


def _head(body: Row) -> Iterator[str]:
    kind = "baseline (static batching, first come first served, no cache)"
    yield (
        f"{body['calls']} calls, {body['scenario']}, {body['transport']}, {body['seconds']:.0f} s, "
        f"seed {body['seed']}, answers: {body['answers']}"
        + (f", {kind}" if body["baseline"] else "")
    )
    yield str(body["hardware"])


def _callers(body: Row) -> Iterator[str]:
    yield f"{'ms':24}{'p50':>9}{'p95':>9}{'p99':>9}{'max':>9}{'n':>7}"
    yield _spread("voice to voice", body["voice_to_voice_ms"])
    for name, spread in (body.get("split_ms") or {}).items():
        yield _spread(f"  {name.replace('_', ' ')}", spread)
    if body["barge_in_stop_ms"]["n"]:
        yield _spread("barge-in, stopped", body["barge_in_stop_ms"])
    yield ""
    glitches = body["glitches_per_min"]
    yield (
        f"glitches a call minute {_number(glitches, 2)} ({body['glitches']} holes over "
        f"{body['glitch_over_ms']:.0f} ms, the worst {body['worst_gap_ms']:.0f} ms)"
        + (f"; ran dry at the server {body['server_holes']}" if "server_holes" in body else "")
    )
    yield (
        f"stuck {body['stuck']}, cross-talk {_number(body['cross_talk'])}, refused "
        f"{body['refused']}, failed {len(body['failed'])}, lost {len(body['lost'])}, "
        f"answered early {body['answered_early']}, talked over {body['barge_ins_missed']}, "
        f"answers to noise {body['false_replies']}"
    )
    if body.get("own_word_missing") is not None:
        yield (
            f"answers listened to {body['answers_transcribed']}, without their own word "
            f"{body['own_word_missing']}"
        )
    for why in dict.fromkeys([*body["failed"], *body["lost"]]):
        yield f"  a call ended: {why}"


def _server(body: Row) -> Iterator[str]:
    yield (
        f"CPU seconds a call minute {_number(body['cpu_s_per_call_min'], 1)}, memory at most "
        f"{_number(body['memory_mb_peak'])} MB ({_number(body['memory_mb_growth'], sign=True)})"
    )
    if body["utilisation"]:
        yield "busy: " + ", ".join(f"{k} {v:.0%}" for k, v in body["utilisation"].items())
    if body["kv"]:
        kv = body["kv"]
        yield (
            f"KV blocks held at most {kv['held_peak']:.0f} of {kv['blocks']:.0f}, with the cache "
            f"{kv['full_peak_share']:.0%} full, evicted {kv['evicted']:.0f}, preempted "
            f"{kv['preemptions']:.0f}"
        )
    if body["shed"]:
        yield "shed: " + ", ".join(f"{k} {v:.0f}" for k, v in body["shed"].items())


def _groups(body: Row) -> Iterator[str]:
    if len(body["groups"]) < 2:
        return
    yield ""
    percentiles = "".join(f"{p:>9}" for p in ("p50", "p95", "p99"))
    yield f"{'of these':16}{'turns':>7}{percentiles}{'glitches/min':>14}{'stuck':>7}{'refused':>9}"
    for name, row in body["groups"].items():
        v = row["voice_to_voice_ms"]
        cells = "".join(f"{_percentile(v, p):>9}" for p in ("p50", "p95", "p99"))
        yield (
            f"{name:16}{row['turns']:>7}{cells}{_number(row['glitches_per_min'], 2):>14}"
            f"{row['stuck']:>7}{row['refused']:>9}"
        )


def _notes(body: Row) -> Iterator[str]:
    for note in body["notes"]:
        yield f"note: {note}"


def _spread(name: str, spread: Row) -> str:
    cells = "".join(f"{_percentile(spread, p):>9}" for p in ("p50", "p95", "p99", "max"))
    return f"{name:24}{cells}{spread['n']:>7}"


def _percentile(spread: Row, name: str) -> str:
    value = spread[name]
    if value is None:
        return "-"
    mark = "~" if name in spread.get("rough", ()) else ""
    return f"{'>' if _in_vain(spread, name) else ''}{mark}{value:.0f}"


def _in_vain(spread: Row, name: str) -> bool:
    """Whether waits that were given up reach down to this percentile: they are the longest."""
    share = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}[name]
    lost: int = spread.get("unanswered", 0)
    return bool(lost > 0 and share * spread["n"] > spread["n"] - lost)


def _number(value: float | None, digits: int = 0, *, sign: bool = False) -> str:
    return "-" if value is None else f"{value:{'+' if sign else ''}.{digits}f}"
