"""One run's figures from its raw samples. Pure: records in, JSON-ready numbers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.callers.caller import CallLog
from loadtest.callers.ear import GAP_S
from loadtest.crosstalk import CrossTalk
from loadtest.numbers import percentile, spread
from loadtest.options import Options
from loadtest.plan import PlannedCall
from loadtest.watch import Watch

SCHEMA = 1
SPLIT = ("end_of_turn", "transcript", "first_text", "first_clause", "first_audio", "playout")
"""Stages of the turn's trace, in the order they end."""
RTP = ("webrtc", "sip")
"""There a client hears a hole of the server's as silence: the server's own count stands for it."""
Row = dict[str, Any]


@dataclass(slots=True)
class Raw:
    """Everything that a run saw. start_s: of the loop's clock; seconds: until no turn began any
    more. records: the server's own turn records; None: they are not ours to read."""

    calls: Sequence[tuple[PlannedCall, CallLog]]
    watch: Watch
    start_s: float
    seconds: float
    records: Sequence[Mapping[str, Any]] | None
    cross_talk: CrossTalk | None
    notes: list[str] = field(default_factory=list)


def turn_rows(raw: Raw) -> list[Row]:
    """One row for each turn of a caller, JSON-ready. `v2v_ms` of a stuck turn is the time that was
    waited in vain: left out, the worst turns would make the percentiles better."""
    rows = []
    for planned, log in raw.calls:
        for t in log.turns:
            ms = t.v2v_s if t.v2v_s is not None else t.waited_s if t.stuck else None
            rows.append(
                {
                    "call": planned.index,
                    "group": planned.group.name,
                    "measured": planned.group.measured,
                    "clip": t.clip,
                    "at_s": round(t.spoken_s - raw.start_s, 3),
                    "v2v_ms": None if ms is None else round(ms * 1000, 1),
                    "stuck": t.stuck,
                    "early": t.early,
                    "cut_in": t.cut_in,
                    "missed": t.missed,
                    "stop_ms": None if t.stop_s is None else round(t.stop_s * 1000, 1),
                }
            )
    return sorted(rows, key=lambda row: row["at_s"])


def call_rows(raw: Raw) -> list[Row]:
    """One row for each call: how long it was up, and every hole that was heard in it."""
    rows = []
    for planned, log in raw.calls:
        up = log.down_s - log.up_s if log.up_s is not None and log.down_s is not None else 0.0
        deceived = planned.group.speech == "noise"
        rows.append(
            {
                "call": planned.index,
                "group": planned.group.name,
                "measured": planned.group.measured,
                "start_s": None if log.up_s is None else round(log.up_s - raw.start_s, 3),
                "minutes": round(up / 60, 5),
                "turns": len(log.turns),
                "gaps_ms": [round(s * 1000, 1) for _, s in log.ear.gaps],
                "refused": log.refused,
                "failed": log.failed,
                "lost": log.lost,
                "false_replies": len(log.ear.stretches) if deceived else 0,
                "foreign_frames": log.ear.foreign if log.ear.labelled else None,
                "frames_late": len(log.late_s),
                "frames": log.frames,
            }
        )
    return rows


def window_rows(raw: Raw) -> list[Row]:
    """CPU of the server second by second, with the minutes of calls that were up meanwhile."""
    rows = []
    for a, b in zip(raw.watch.samples, raw.watch.samples[1:], strict=False):
        minutes = 0.0
        for _, log in raw.calls:
            if log.up_s is not None:
                end = log.down_s if log.down_s is not None else b.at_s
                minutes += max(0.0, min(end, b.at_s) - max(log.up_s, a.at_s)) / 60
        spent = None if a.cpu_s is None or b.cpu_s is None else round(b.cpu_s - a.cpu_s, 3)
        rows.append(
            {"at_s": round(b.at_s - raw.start_s, 2), "cpu_s": spent, "minutes": round(minutes, 5)}
        )
    return rows


def cpu_per_minute(windows: Sequence[Row]) -> float | None:
    used = [w for w in windows if w["cpu_s"] is not None and w["minutes"] > 0]
    minutes = sum(w["minutes"] for w in used)
    return sum(w["cpu_s"] for w in used) / minutes if minutes > 0 else None


def glitches_per_minute(calls: Sequence[Row]) -> float | None:
    minutes = sum(c["minutes"] for c in calls)
    return sum(len(c["gaps_ms"]) for c in calls) / minutes if minutes > 0 else None


def report(options: Options, hardware: str, raw: Raw) -> Row:
    """The JSON of one run; its `raw` part has every sample that a figure was made of."""
    turns, calls, windows = turn_rows(raw), call_rows(raw), window_rows(raw)
    body = head(options, hardware, raw) | summary(turns, calls)
    body |= server_side(raw.records)
    if options.transport in RTP and body.get("server_holes") and body["call_minutes"]:
        body["glitches"] += body["server_holes"]
        body["glitches_per_min"] = body["glitches"] / body["call_minutes"]
    foreign = [c["foreign_frames"] for c in calls if c["foreign_frames"] is not None]
    body["foreign_frames"] = sum(foreign) if foreign else None
    body |= cross_talk(raw.cross_talk, body["foreign_frames"])
    memory = [s.memory_mb for s in raw.watch.samples if s.memory_mb is not None]
    body |= {
        "cpu_s_per_call_min": cpu_per_minute(windows),
        "memory_mb_peak": max(memory, default=None),
        "memory_mb_growth": memory[-1] - memory[0] if len(memory) > 1 else None,
        "kv": raw.watch.kv(),
        "utilisation": raw.watch.utilisation(),
        "shed": raw.watch.shed(),
        "late_frames_share": share(calls),
        "groups": {
            name: summary([t for t in turns if t["group"] == name], members, everyone=True)
            for name, members in grouped(calls).items()
        },
        "notes": raw.notes,
        "raw": {"turns": turns, "calls": calls, "windows": windows, "stages": stages(raw.records)},
    }
    return body


def head(options: Options, hardware: str, raw: Raw) -> Row:
    return {
        "schema": SCHEMA,
        "hardware": hardware,
        "scenario": options.scenario,
        "transport": options.transport,
        "calls": options.calls,
        "seconds": options.seconds,
        "arrival": options.arrival,
        "answers": "server" if options.url else options.answers,
        "seed": options.seed,
        "baseline": options.baseline,
        "models": None
        if options.url
        else {"llm": options.llm, "stt": options.stt, "voice": options.voice},
        "settings": dict(options.settings),
        "call_minutes": sum(c["minutes"] for c in call_rows(raw)),
    }


def summary(turns: Sequence[Row], calls: Sequence[Row], *, everyone: bool = False) -> Row:
    """What the callers noticed. Only measured groups, but for refusals and broken calls; everyone:
    of all that are given."""
    own = [t for t in turns if everyone or t["measured"]]
    lines = [c for c in calls if everyone or c["measured"]]
    waits = [t["v2v_ms"] for t in own if t["v2v_ms"] is not None]
    stops = [t["stop_ms"] for t in own if t["stop_ms"] is not None]
    gaps = [g for c in lines for g in c["gaps_ms"]]
    return {
        "turns": len(own),
        "voice_to_voice_ms": spread(waits, sum(t["stuck"] for t in own)),
        "glitches_per_min": glitches_per_minute(lines),
        "glitches": len(gaps),
        "glitch_over_ms": GAP_S * 1000,
        "worst_gap_ms": max(gaps, default=0.0),
        "barge_in_stop_ms_p99": percentile(stops, 0.99),
        "barge_in_stop_ms": spread(stops),
        "barge_ins_missed": sum(t["missed"] for t in own),
        "answered_early": sum(t["early"] for t in own),
        "stuck": sum(t["stuck"] for t in turns),
        "refused": sum(bool(c["refused"]) for c in calls),
        "failed": [c["failed"] for c in calls if c["failed"]],
        "lost": [c["lost"] for c in calls if c["lost"]],
        "false_replies": sum(c["false_replies"] for c in calls),
    }


def cross_talk(found: CrossTalk | None, foreign_frames: int | None) -> Row:
    """cross_talk: answers with another live caller's word and pieces of replies that were not the
    call's own; None where neither could be looked at."""
    if found is None and foreign_frames is None:
        return {"cross_talk": None, "own_word_missing": None, "answers_transcribed": 0}
    heard = len(found.foreign) if found is not None else 0
    return {
        "cross_talk": heard + (foreign_frames or 0),
        "own_word_missing": found.missing if found is not None else None,
        "answers_transcribed": found.answers if found is not None else 0,
        "cross_talk_words": [list(pair) for pair in found.foreign] if found is not None else [],
    }


def server_side(records: Sequence[Mapping[str, Any]] | None) -> Row:
    """The split of a turn, by the server's own record of it, and what it lost on the way."""
    if records is None:
        return {"split_ms": None, "server_voice_to_voice_ms": None}
    spans = stages(records)
    v2v = [r["voice_to_voice_ms"] for r in records if r.get("voice_to_voice_ms") is not None]
    return {
        "split_ms": {name: spread(spans[name]) for name in SPLIT if spans.get(name)},
        "server_voice_to_voice_ms": spread(v2v),
        "server_holes": sum(r.get("holes", 0) for r in records),
        "outcomes": count(r.get("outcome", "").partition(":")[0] for r in records),
    }


def stages(records: Sequence[Mapping[str, Any]] | None) -> dict[str, list[float]]:
    """Milliseconds of every stage, of turns that were answered."""
    out: dict[str, list[float]] = {}
    for record in records or ():
        if record.get("voice_to_voice_ms") is not None:
            for name, ms in record.get("stages", {}).items():
                out.setdefault(name, []).append(ms)
    return out


def grouped(calls: Sequence[Row]) -> dict[str, list[Row]]:
    out: dict[str, list[Row]] = {}
    for row in calls:
        out.setdefault(row["group"], []).append(row)
    return out


def count(names: Any) -> dict[str, int]:
    out: dict[str, int] = {}
    for name in names:
        out[name or "unknown"] = out.get(name or "unknown", 0) + 1
    return out


def share(calls: Sequence[Row]) -> float | None:
    """Of the callers' own frames, those sent over 5 ms late: the load generator is too slow for
    these figures when it is more than a few percent."""
    frames = sum(c["frames"] for c in calls)
    return sum(c["frames_late"] for c in calls) / frames if frames else None
