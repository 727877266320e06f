"""A history as one JSON document, or as a table of turns."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from voice_agent.trace import STAGES

from .entries import CallEntry

Calls = Iterable[tuple[CallEntry, Sequence[Mapping[str, Any]]]]

CALL_COLUMNS = ("id", "agent", "transport", "began_unix_s", "ended_unix_s", "outcome", "fault")
TURN_COLUMNS = (
    "n", "turn", "revision", "reply", "outcome", "interrupted", "model", "backend", "fallback",
    "prompt_version", "zero_unix_s", "voice_to_voice_ms", "lateness_ms", "partials",
    "prompt_tokens", "cached_tokens", "output_tokens", "wasted_tokens", "reply_words",
    "heard_words", "transcript", "reply_text", "heard",
)  # fmt: skip
STAGE_COLUMNS = tuple(name for name, _, _ in STAGES)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_json(calls: Calls, out: TextIO) -> int:
    """An array of calls, each with its turns' records as `turns`. Returns how many calls."""
    n = 0
    out.write("[")
    for call, turns in calls:
        out.write(",\n" if n else "\n")
        json.dump({**asdict(call), "turns": turns}, out, ensure_ascii=False)
        n += 1
    out.write("\n]\n")
    return n


def to_csv(calls: Calls, out: TextIO) -> int:
    """A line for each turn; a call without any has one with its own columns alone. Returns how
    many calls.

    Columns of the call begin with `call_`, times of stages (ms) with `stage_`. A text that a
    spreadsheet would take for a formula gets an apostrophe before it.
    """
    rows = csv.writer(out, lineterminator="\n")
    names = [f"call_{name}" for name in CALL_COLUMNS]
    rows.writerow([*names, *TURN_COLUMNS, *(f"stage_{name}" for name in STAGE_COLUMNS)])
    n = 0
    for call, turns in calls:
        n += 1
        own = [getattr(call, name) for name in CALL_COLUMNS]
        for turn in turns or ({},):
            stages = turn.get("stages", {})
            values = [turn.get(name) for name in TURN_COLUMNS]
            rows.writerow(map(_cell, [*own, *values, *map(stages.get, STAGE_COLUMNS)]))
    return n


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value
