"""The conversation as the protocol numbers it: items in order, kept for retrieval."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from .errors import ProtocolError

MAX_ITEMS = 1_000


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"


@dataclass(slots=True)
class Item:
    role: str
    content: list[dict[str, Any]]
    id: str = field(default_factory=lambda: new_id("item"))
    status: str = "completed"

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [dict(part) for part in self.content],
        }


class Conversation:
    """Owns the items; beyond MAX_ITEMS the oldest is forgotten (and can't be retrieved)."""

    def __init__(self) -> None:
        self.id = new_id("conv")
        self._items: dict[str, Item] = {}
        self.last_id: str | None = None

    def add(self, item: Item) -> str | None:
        """Append; returns the id of the item before it."""
        previous, self.last_id = self.last_id, item.id
        self._items[item.id] = item
        if len(self._items) > MAX_ITEMS:
            del self._items[next(iter(self._items))]
        return previous

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._items

    def get(self, item_id: str) -> Item:
        try:
            return self._items[item_id]
        except KeyError:
            raise ProtocolError(
                "item_not_found", f"There is no item {item_id[:64]!r} here.", param="item_id"
            ) from None

    def remove(self, item_id: str) -> None:
        self._items.pop(item_id, None)
        if self.last_id == item_id:
            self.last_id = next(reversed(self._items), None)
