"""What a tool is, whoever does its work: a Python function, a webhook, an MCP server, the call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from voice_agent.context import Declaration

if TYPE_CHECKING:
    from voice_agent.agent import Call

OnInterrupt = Literal["finish", "cancel"]

Run = Callable[[dict[str, Any], "Call"], Awaitable[str | None]]
"""(arguments, the call) -> what the model is told; None: nothing, and nothing is said about it.

Raises ToolFailed, whose message the model is told; any other error is told in general words."""


class ToolFailed(Exception):
    """The work was not done; the message says why, for the model (and so for the caller)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """read_only: it changes nothing, so it may start at commit. timeout_s: of one run.

    parameters: JSON schema of an object. on_interrupt: whether a run goes on when the caller takes
    the floor. max_chars: of its result. by_client: the transport's client does it, and asks for the
    answer to its result when it wants one.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Run
    read_only: bool = False
    timeout_s: float = 10.0
    on_interrupt: OnInterrupt = "finish"
    max_chars: int = 2000
    by_client: bool = False

    @property
    def declaration(self) -> Declaration:
        """As OpenAI's requests and chat templates tell it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class AskedCall:
    """One call as the model wrote it. arguments: JSON text, possibly cut short or wrong."""

    name: str
    arguments: str
