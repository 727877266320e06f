"""The WebRTC kind of media worker."""

from __future__ import annotations

import socket

from gateway.webrtc_leg import RtcLeg
from voice_agent.clock import MonotonicClock

from .host import Host
from .link import Message


async def serve(sock: socket.socket, start: Message) -> None:
    """Until the core closes the socket."""
    clock = MonotonicClock()
    await Host(lambda tell: RtcLeg(tell, clock), clock).run(sock)
