"""The conversation as the protocol numbers it: items in order, kept for retrieval."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Protocol

from voice_agent.context import Key

from .errors import ProtocolError

MAX_ITEMS = 1_000
ROOT = "root"
"""What a client names as the item before the first."""


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"


class AnyItem(Protocol):
    """key: what the history knows it by; None: nothing of it is there."""

    id: str
    status: str

    @property
    def key(self) -> Key | None: ...

    def wire(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class Item:
    """A message."""

    role: str
    content: list[dict[str, Any]]
    id: str = field(default_factory=lambda: new_id("item"))
    status: str = "completed"
    key: Key | None = None

    @property
    def text(self) -> str:
        parts = (part.get("text") or part.get("transcript") or "" for part in self.content)
        return "\n".join(filter(None, parts))

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [dict(part) for part in self.content],
        }


@dataclass(slots=True)
class Call:
    """A tool that the client is asked for. The call's id is its key."""

    key: str
    name: str
    arguments: str
    id: str = field(default_factory=lambda: new_id("item"))
    status: str = "completed"

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "function_call",
            "status": self.status,
            "name": self.name,
            "call_id": self.key,
            "arguments": self.arguments,
        }


@dataclass(slots=True)
class Output:
    """What the client says came of it."""

    key: str
    output: str
    id: str = field(default_factory=lambda: new_id("item"))
    status: str = "completed"

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "function_call_output",
            "status": self.status,
            "call_id": self.key,
            "output": self.output,
        }


class Conversation:
    """Owns the items; beyond MAX_ITEMS the oldest is forgotten (and can't be retrieved)."""

    def __init__(self) -> None:
        self.id = new_id("conv")
        self._items: list[AnyItem] = []

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    def add(self, item: AnyItem, after: str | None = None) -> str | None:
        """Behind the item `after` (ROOT: as the first), or at the end; returns the id of the one
        before it."""
        at = len(self._items)
        if after is not None:
            at = 0 if after == ROOT else self._at(after, "previous_item_id") + 1
        previous = self._items[at - 1].id if at else None
        self._items.insert(at, item)
        if len(self._items) > MAX_ITEMS:
            del self._items[0]
        return previous

    def known_before(self, after: str) -> Key | None:
        """The key of the item `after`, or of the last one before it that has a key; None: it
        would be the history's first."""
        at = 0 if after == ROOT else self._at(after, "previous_item_id") + 1
        keys = (item.key for item in reversed(self._items[:at]) if item.key is not None)
        return next(keys, None)

    def __contains__(self, item_id: object) -> bool:
        return any(item.id == item_id for item in self._items)

    def get(self, item_id: str) -> AnyItem:
        return self._items[self._at(item_id, "item_id")]

    def _at(self, item_id: str, param: str) -> int:
        for at in range(len(self._items) - 1, -1, -1):  # the one meant is mostly among the last
            if self._items[at].id == item_id:
                return at
        raise ProtocolError(
            "item_not_found", f"There is no item {item_id[:64]!r} here.", param=param
        )

    def remove(self, item_id: str) -> None:
        self._items = [item for item in self._items if item.id != item_id]
