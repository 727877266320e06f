"""What an operator sees of a live call at a glance: how it stands, none of its words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glance:
    """caller, floor: the states of the turn machine (docs/TURNS.md); age_s: since the call began;
    turns: that ended; voice_to_voice_ms: of the last one that was answered, None before."""

    agent: str
    caller: str
    floor: str
    age_s: float
    turns: int
    voice_to_voice_ms: float | None
