"""How long a connection may take, and how many there may be: uvicorn's HTTP/1.1 with bounds.

uvicorn limits only the pause between two requests. Here a head must be whole in time too, so that
a client that sends a byte now and then (slow loris), or nothing at all, holds no connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from .limits import neighbourhood


class Crowd:
    """Counts the HTTP connections of one server, by address. WebSockets are counted as calls."""

    def __init__(self, most: int, most_each: int, free: frozenset[str] = frozenset()) -> None:
        """free: addresses of proxies, which many clients share."""
        self._most = most
        self._most_each = most_each
        self._free = free
        self._by_address: Counter[str] = Counter()
        self.turned_away = 0

    def __len__(self) -> int:
        return self._by_address.total()

    def enter(self, address: str) -> bool:
        mine = neighbourhood(address)
        crowded = address not in self._free and self._by_address[mine] >= self._most_each
        if crowded or len(self) >= self._most:
            self.turned_away += 1
            return False
        self._by_address[mine] += 1
        return True

    def leave(self, address: str) -> None:
        mine = neighbourhood(address)
        self._by_address[mine] -= 1
        if not self._by_address[mine]:
            del self._by_address[mine]


def bounded_http(crowd: Crowd, head_s: float, write_s: float) -> type[H11Protocol]:
    """A protocol class for uvicorn.

    head_s: for a request's head (for its body see `Guard`). write_s: a client that reads nothing of
    its answer for so long is let go.
    """

    class BoundedHttp(H11Protocol):
        _entered = False
        _head_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            stream = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only
            super().connection_made(stream)
            self._entered = crowd.enter(self._address)
            if self._entered:
                self._watch()
            else:
                stream.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._entered:
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._leave()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(write_s, self.transport.abort)

        def resume_writing(self) -> None:
            self._unpause()
            super().resume_writing()

        def handle_websocket_upgrade(self, event: object) -> None:
            self._leave()
            super().handle_websocket_upgrade(event)  # type: ignore[arg-type]

        @property
        def _address(self) -> str:
            return self.client[0] if self.client else ""

        def _watch(self) -> None:
            """The timer runs while no request is being answered, whatever trickles in."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._unwatch()
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(head_s, self._too_slow)

        def _unwatch(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _too_slow(self) -> None:
            self._head_timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

        def _unpause(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _leave(self) -> None:
            self._unwatch()
            self._unpause()
            if self._entered:
                self._entered = False
                crowd.leave(self._address)

    return BoundedHttp
