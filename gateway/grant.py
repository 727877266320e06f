"""What the holder of a key or token may do: one record, made at the door and carried along."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from voice_agent.errors import UsageError


class Scope(StrEnum):
    """Where a grant opens. ADMIN opens everything, and alone lets clients name MCP servers,
    webhooks and tools."""

    ADMIN = "admin"
    CALL = "call"
    API = "api"
    METRICS = "metrics"


class Change(StrEnum):
    """What of its own call a client may change, beside audio formats and being muted.

    INSTRUCTIONS: also system and assistant messages, and a response's own instructions or input.
    TOOLS: functions that the client runs. VOICE: also its speed. TURNS: turn detection and whether
    it answers by itself. LIMITS: lengths of replies. MODALITY: text instead of sound.
    """

    INSTRUCTIONS = "instructions"
    TOOLS = "tools"
    VOICE = "voice"
    TURNS = "turns"
    LIMITS = "limits"
    MODALITY = "modality"


@dataclass(frozen=True, slots=True)
class Grant:
    """subject: the key's id, which limits and logs go by. agent: the only one; None: any.

    token: id of the session token that it came by, if it did: a token mints no others.
    session: what was laid down when the token was made (the protocol's session object); applied
    with the maker's rights and not shown to the client.
    """

    subject: str
    scopes: frozenset[Scope]
    changes: frozenset[Change]
    agent: str | None = None
    token: str | None = None
    session: dict[str, Any] | None = None

    @property
    def admin(self) -> bool:
        return Scope.ADMIN in self.scopes

    def opens(self, scope: Scope) -> bool:
        return self.admin or scope in self.scopes

    def may_change(self, change: Change) -> bool:
        return change in self.changes

    def allows_agent(self, name: str) -> bool:
        return self.agent is None or self.agent == name

    def agent_for(self, asked: str | None) -> str | None:
        """The agent of a call that asked for one, or for none. Raises UsageError VA458."""
        if asked is not None and not self.allows_agent(asked):
            raise UsageError(f"This key does not open the agent {asked[:64]!r}.", code="VA458")
        return asked or self.agent


def of_key(subject: str, scopes: Iterable[Scope], agent: str | None = None) -> Grant:
    """A key's own grant: without ADMIN it changes everything but tools."""
    own = frozenset(scopes)
    changes = set(Change)
    if Scope.ADMIN not in own:
        changes.discard(Change.TOOLS)
    return Grant(subject, own, frozenset(changes), agent)


LOCAL = of_key("local", [Scope.ADMIN])
"""Whoever reaches a server without keys: programs of this machine."""
