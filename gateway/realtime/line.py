"""Whoever a session talks to: its client, and watchers that joined by its call's id."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from .items import new_id


class Outbox(Protocol):
    """Where messages wait for the socket. key: lets late audio of a cut response be dropped."""

    def put(self, text: str, /, key: str | None = None) -> None: ...

    def drop(self, key: str) -> None: ...


class Line:
    """Owns who is told; every message is made once."""

    def __init__(self, main: Outbox) -> None:
        self.main = main
        self._all = [main]

    def join(self, outbox: Outbox) -> Callable[[], None]:
        """Returns what makes it leave; may be called twice."""
        self._all.append(outbox)

        def leave() -> None:
            if outbox in self._all:
                self._all.remove(outbox)

        return leave

    def emit(self, type_: str, *, to: Outbox | None = None, **fields: Any) -> None:
        """to: only this one; None: everybody."""
        event = {"type": type_, "event_id": new_id("event"), **fields}
        key = event["response_id"] if type_ == "response.output_audio.delta" else None
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        for outbox in self._all if to is None else (to,):
            outbox.put(text, key)

    def drop(self, key: str) -> None:
        for outbox in self._all:
            outbox.drop(key)
