"""An agent declared in Python: the same settings as an agent file, and functions as tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from voice_agent.agent_file import AgentFile, AgentShelf
from voice_agent.errors import UsageError
from voice_agent.explain import explain

from .call import Call


@dataclass(frozen=True, slots=True)
class Agent:
    """Who answers. tools: functions, marked with `tool` or not. script: runs beside every call.

    settings: further keys of an agent file (docs/CONFIG.md), such as
    `{"turn_taking": {"preset": "quick"}, "tools": {"end_call": True}}`.
    """

    instructions: str
    name: str = "default"
    greeting: str = ""
    goodbye: str = ""
    voice: str = ""
    tools: Sequence[Callable[..., Any]] = ()
    script: Callable[[Call], Awaitable[None]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def file(self) -> AgentFile:
        """As if it had been read from a file. Raises UsageError VA441."""
        own = {key: getattr(self, key) for key in ("name", "instructions", "greeting", "goodbye")}
        section = dict(self.settings.get("tools", {}))
        section["python"] = (*section.get("python", ()), *self.tools)
        data = {**self.settings, **own, "voice": self.voice, "tools": section}
        try:
            return AgentFile(**data)
        except ValidationError as error:
            text = explain(error, AgentFile, lambda _: f"agent {self.name!r}")
            raise UsageError(text, code="VA441") from error


class GivenAgents(AgentShelf):
    """Agents that came from Python instead of files."""

    def __init__(self, files: Mapping[str, AgentFile]) -> None:
        self._files = dict(files)

    def get(self, name: str) -> tuple[AgentFile, None]:
        """Raises UsageError VA443."""
        if name not in self._files:
            known = ", ".join(self._files)
            raise UsageError(f"there is no agent {name!r} (known: {known})", code="VA443")
        return self._files[name], None
