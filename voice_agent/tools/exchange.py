"""The tools one reply asked for: records, and the rule that says when a run may begin. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from voice_agent import turn as tm
from voice_agent.context import Message, ToolUse
from voice_agent.scope import CancelScope
from voice_agent.trace import TurnTrace
from voice_agent.types import ReplyId, TurnId

from .base import AskedCall, Tool

GRACE_S = 0.5
"""After commit without the caller speaking; then what was said is what was meant."""
CANCELLED = "cancelled: the caller went on to something else"
RUNNING = "still running; its result will follow"
SPEAK = "Answer the caller now in one plain spoken sentence. Call nothing."
"""Told to a model that would go on calling; without it, small ones write the call as text."""


@dataclass(slots=True, eq=False)
class Use:
    """One call. started: work may have been done, so its result is a fact; result: as told to the
    model, None until it ended."""

    asked: AskedCall
    tool: Tool | None
    scope: CancelScope
    id: str = ""
    started: bool = False
    over: bool = False
    result: str | None = None

    def end(self, result: str | None) -> None:
        if not self.over:
            self.over, self.result = True, result

    @property
    def key(self) -> tuple[str, str]:
        """Equal for calls of one tool with the same arguments. Small models add some of their own:
        those that the tool doesn't name do not count."""
        try:
            arguments = json.loads(self.asked.arguments or "{}")
        except (ValueError, RecursionError):
            return self.asked.name, self.asked.arguments
        named = self.tool.parameters.get("properties") if self.tool is not None else None
        if isinstance(arguments, dict) and named:
            arguments = {name: value for name, value in arguments.items() if name in named}
        return self.asked.name, json.dumps(arguments, sort_keys=True)

    @property
    def record(self) -> ToolUse:
        return ToolUse(self.id, self.asked.name, self.asked.arguments or "{}", self.result or "")


@dataclass(slots=True, eq=False)
class Exchange:
    """ids: the reply as generated, if the history is to keep it so. committed_s: when the reply got
    the floor; sounded: its first sound has left.

    by_client: the transport's client does it. let_go: the caller took the floor, so the next answer
    may have come without the results. told: the history says that it runs. repeats: it asked again
    for what the turn knows already. said: what was heard of the reply, in the history.
    """

    reply: ReplyId
    turn: TurnId | None
    trace: TurnTrace | None
    uses: list[Use]
    ids: tuple[int, ...]
    step: int
    committed_s: float
    sounded: bool = False
    whole: bool = False  # the reply was heard to its end
    let_go: bool = False
    told: bool = False
    repeats: bool = False
    by_client: bool = False
    said: Message | None = None

    @property
    def over(self) -> bool:
        return all(use.over for use in self.uses)

    @property
    def told_uses(self) -> list[Use]:
        """Those the model hears of: a tool may have nothing to tell."""
        return [use for use in self.uses if not use.over or use.result is not None]


def may_start(tool: Tool, state: tm.TurnState, *, sounded: bool, quiet_s: float) -> bool:
    """The commit rule. quiet_s: since commit, or since the caller was last heard if that is later.

    Asked only after commit. What changes nothing starts at once; anything else once the first sound
    of the reply has left, or `GRACE_S` without caller speech has passed, and never while it is
    undecided whether the caller takes the floor.
    """
    if tool.read_only:
        return True
    return not caller_speaks(state) and (sounded or quiet_s >= GRACE_S)


def caller_speaks(state: tm.TurnState) -> bool:
    return state.caller in (tm.Caller.SPEAKING, tm.Caller.PAUSED) or state.floor is tm.Floor.HELD
