"""What a telephone line can do besides carrying sound; set by a transport that has one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

TRANSPORT: ContextVar[str] = ContextVar("transport", default="local")
"""By what the calls come that are opened from here on; set by who admits them."""


class Line(Protocol):
    """Both raise `voice_agent.errors.VoiceAgentError` when the network refuses."""

    async def transfer(self, target: str) -> None:
        """Hand the caller on; returns once the other side has taken over (SIP: RFC 3515)."""
        ...

    async def send_dtmf(self, keys: str) -> None:
        """keys: 0-9, A-D, * and #; returns once they have been sent (RTP: RFC 4733)."""
        ...
