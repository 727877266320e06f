"""Where a turn's time goes: from the caller's last word to our first sound, part by part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from voice_agent.trace import Mark, TurnTrace

PARTS: tuple[tuple[str, Mark, Mark], ...] = (
    ("pause", Mark.SPEECH_END, Mark.PAUSE),
    ("recognition", Mark.PAUSE, Mark.TRANSCRIPT),
    ("held back", Mark.TRANSCRIPT, Mark.LLM_SUBMIT),
    ("first text", Mark.LLM_SUBMIT, Mark.LLM_FIRST_TEXT),
    ("first clause", Mark.LLM_FIRST_TEXT, Mark.FIRST_CLAUSE),
    ("voice", Mark.FIRST_CLAUSE, Mark.TTS_FIRST_AUDIO),
    ("turn open", Mark.TTS_FIRST_AUDIO, Mark.FIRST_SOUND),
)
"""(part, from, to), one after the other: together they are voice to voice. held back: the model was
not asked before the end of the turn. turn open: the answer was there, the turn not over yet."""
SLOWEST = 0.05


def path_ms(trace: TurnTrace) -> Mapping[str, float] | None:
    """Each part's ms; None for a turn without all of them."""
    spans = {name: trace.span_ms(begin, end) for name, begin, end in PARTS}
    found = {name: ms for name, ms in spans.items() if ms is not None}
    return found if len(found) == len(PARTS) else None


def slowest(paths: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The slowest twentieth, at least one."""
    n = math.ceil(SLOWEST * len(paths))
    return sorted(paths, key=lambda path: sum(path.values()))[len(paths) - n :]


def mean_path(paths: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each part's mean, in order; empty for no paths."""
    if not paths:
        return {}
    return {name: sum(path[name] for path in paths) / len(paths) for name, _, _ in PARTS}
