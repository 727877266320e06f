"""What one reply is to be like where it differs from its call, and what it may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.grammar.spec import Grammar
from engine.text.tools import reply_grammar

from .context import Declaration
from .errors import UsageError
from .tools.base import Tool

if TYPE_CHECKING:
    from .stack import Stack


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """name: the only tool that may be called, with mode "required"."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A message that a client gives to be answered. role: user, system or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ReplySettings:
    """None: as the call has it. instructions and tools count for this reply only.

    tools: the client's, instead of all others. said: what is answered instead of the history.
    aloud: spoken, not only written.
    """

    instructions: str | None = None
    tools: tuple[Declaration, ...] | None = None
    tool_choice: ToolChoice | None = None
    said: tuple[Said, ...] | None = None
    max_output_tokens: int | None = None
    voice: str | None = None
    aloud: bool | None = None

    @property
    def own_prompt(self) -> bool:
        """It is not made from the call's history as that stands."""
        return any(x is not None for x in (self.instructions, self.tools, self.said))


AS_THE_CALL = ReplySettings()


def offered(tools: Mapping[str, Tool], choice: ToolChoice) -> dict[str, Tool]:
    """What a reply may call. Raises UsageError VA117 for a tool that is not there."""
    if choice.mode == "none":
        return {}
    if choice.name is not None:
        if choice.name not in tools:
            raise UsageError(f"there is no tool called {choice.name[:64]!r}", code="VA117")
        return {choice.name: tools[choice.name]}
    if choice.mode == "required" and not tools:
        raise UsageError("a tool is required and there is none", code="VA117")
    return dict(tools)


def forced(stack: Stack, tools: Sequence[Tool], choice: ToolChoice) -> Grammar | None:
    """What a reply that must call one of `tools` looks like; None: it may say what it wants.

    Raises UsageError VA118 where another process makes the replies.
    """
    if choice.mode != "required":
        return None
    if not stack.follows_grammars:
        raise UsageError(
            "the language model of this server can't be made to call a tool: use auto", code="VA118"
        )
    told = [dict(tool.declaration) for tool in tools]
    special = frozenset(getattr(stack.tokenizer, "special", ()))
    return reply_grammar(told, "required", parallel=choice.name is None, special=special)
