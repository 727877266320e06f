"""What the turn machine decided and why: one record per effect, without a word of content.

Traces keep them per turn, recordings keep all of them, and a replay is right if it gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from .endpointing import Ending
from .types import TurnId

Reason: TypeAlias = bool | int | float | str

_CONTENT = frozenset({"text", "turn", "old"})


@dataclass(frozen=True, slots=True)
class Decision:
    """what: the effect; cause: the event that had it, both as in voice_agent/turn.py.

    turn: the one it is about; at_s: of the call's clock. why: the numbers and kinds it rests on.
    """

    what: str
    turn: TurnId
    at_s: float
    cause: str
    why: Mapping[str, Reason]

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What a replay must repeat: everything but times."""
        return (self.what, self.turn.index, self.turn.revision, self.cause)


def explain(
    event: object, effect: object, *, turn: TurnId, at_s: float, ending: Ending | None = None
) -> Decision:
    """event, effect: of the turn machine. turn: the current one, for an effect that names none.

    ending: what the endpointer's last end of turn rested on, if this may be its doing.
    """
    about = getattr(effect, "turn", turn)
    why: dict[str, Reason] = {**_facts(event), **_facts(effect)}
    if ending is not None:
        why |= {
            "silence_ms": round(ending.silence_ms),
            "timeout_ms": round(ending.timeout_ms),
            "p_complete": round(ending.p_complete, 3),
            "evidence": round(ending.evidence, 2),
        }
        if ending.model is not None:
            why["model"] = round(ending.model, 2)
    return Decision(_name(effect), about, at_s, _name(event), why)


def _facts(record: Any) -> dict[str, Reason]:
    facts: dict[str, Reason] = {}
    for f in fields(record):
        value = getattr(record, f.name)
        if f.name not in _CONTENT and isinstance(value, bool | int | float | str):
            facts[f.name] = str(value) if isinstance(value, str) else value  # no StrEnum
    return facts


def _name(record: object) -> str:
    """`ThinkEarly` -> `think_early`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(record).__name__).lower()
