"""The `[rtc]` section: how the media of WebRTC calls is carried."""

from __future__ import annotations

from pydantic import Field

from .server_section import Section


class RtcConfig(Section):
    workers: int = Field(default=0, ge=0, le=64)
    """Processes for sockets, encryption and codecs; 0: the server's own. Flag --media-workers."""
