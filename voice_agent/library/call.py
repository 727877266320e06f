"""A live call in the hands of one's own code."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from voice_agent.events import CallEnded, EndReason, Event

if TYPE_CHECKING:
    from voice_agent.agent import Call as LiveCall

MAX_EVENTS = 1024


class Call:
    """Given to an agent's `script` and to tools with a parameter `call`. Belongs to the event loop.

    `async for event in call` yields the records of `voice_agent.events` in order, up to and with
    `CallEnded`. Whoever reads too slowly loses the oldest ones; `missed` counts them.
    """

    def __init__(self, live: LiveCall) -> None:
        self.id = live.id
        self.missed = 0
        self._live = live
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._over = False
        live.listeners.append(self._take)

    async def say(self, text: str) -> None:
        """Says it as soon as nobody speaks; returns once it was heard or the caller cut in."""
        await self._live.say(text)

    def interrupt(self) -> bool:
        """Stops what is being said or thought. False if there was nothing."""
        return self._live.client.cancel_reply()

    async def transfer(self, target: str) -> None:
        """Hands the caller on once our words have been heard. target: an address as the transport
        knows it. Raises `UsageError` VA115 where the transport cannot."""
        await self._live.transfer(target)

    def hang_up(self) -> None:
        """Ends the call: what is being said, or else the goodbye, is heard first."""
        self._live.end_politely(EndReason.AGENT_GOODBYE)

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        event = self._events.popleft()
        self._over = self._over or isinstance(event, CallEnded)
        return event

    def _take(self, event: Event) -> None:
        if len(self._events) >= MAX_EVENTS:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._wake.set()
