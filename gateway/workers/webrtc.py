"""The WebRTC kind of media worker."""

from __future__ import annotations

import socket

from gateway.config import RtcNetwork
from gateway.webrtc_leg import RtcLeg
from voice_agent.clock import MonotonicClock

from .host import Host
from .link import Message


async def serve(sock: socket.socket, start: Message) -> None:
    """Until the core closes the socket."""
    clock = MonotonicClock()
    ports = start.get("ports")
    network = RtcNetwork(tuple(ports) if ports else None, start.get("public_address", ""))
    await Host(lambda tell: RtcLeg(tell, clock, network), clock).run(sock)
