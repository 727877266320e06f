"""What a telephone line can do besides carrying sound; set by a transport that has one."""

from __future__ import annotations

from typing import Protocol


class Line(Protocol):
    """Both raise `voice_agent.errors.VoiceAgentError` when the network refuses."""

    async def transfer(self, target: str) -> None:
        """Hand the caller on; returns once the other side has taken over (SIP: RFC 3515)."""
        ...

    async def send_dtmf(self, keys: str) -> None:
        """keys: 0-9, A-D, * and #; returns once they have been sent (RTP: RFC 4733)."""
        ...
