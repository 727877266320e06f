"""Turn-taking: recorded calls of real people and models decide again, in virtual time."""

from __future__ import annotations

from pathlib import Path

from voice_agent.replay.compare import rows
from voice_agent.replay.play import replay
from voice_agent.replay.tape import SUFFIX, load

from .figures import Better, Figure

CALLS = Path(__file__).parents[3] / "tests" / "data" / "calls"


def figures() -> list[Figure]:
    compared, guessed = [], 0
    for path in sorted(CALLS.glob(f"*{SUFFIX}")):
        recorded = load(path)
        replayed = replay(recorded)
        compared += rows(recorded.tape.decisions, replayed.decisions)
        guessed += replayed.guessed
    changed = sum(not row.same for row in compared)
    return [
        Figure("conversation.recorded_decisions", float(len(compared)), Better.HIGHER),
        Figure("conversation.recorded_decisions_changed", float(changed), Better.LOWER),
        Figure("conversation.questions_not_asked_then", float(guessed), Better.LOWER),
    ]
