"""Where WebRTC's media goes: the ports it uses, the address it is told to come to, and by which
servers clients may reach it."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import random
import socket
from typing import Any

import aioice.candidate
import aioice.ice
from aiortc import RTCPeerConnection

from voice_agent.errors import CapacityError, InternalError

RECEIVE_BYTES = 1 << 20


def use_ports(pc: RTCPeerConnection, ports: tuple[int, int], public: bool) -> None:
    """Have the connection's sockets bound within `ports`; before its local description is set.

    public: IPv4 only. Raises InternalError if this aioice is not as expected.
    """
    for transport in _ice_transports(pc):
        connection: Any = getattr(transport.iceGatherer, "_connection", None)
        if not hasattr(connection, "get_component_candidates"):
            raise InternalError("this version of aiortc is not supported: install aiortc 1.16")
        connection.get_component_candidates = functools.partial(
            _host_candidates, connection, ports, public
        )


def _ice_transports(pc: RTCPeerConnection) -> list[Any]:
    dtls = [t.receiver.transport for t in pc.getTransceivers()]
    if pc.sctp is not None:
        dtls.append(pc.sctp.transport)
    return list({id(d.transport): d.transport for d in dtls}.values())


async def _host_candidates(
    connection: Any, ports: tuple[int, int], ipv4: bool, component: int, addresses: list[str],
    timeout: int = 5,
) -> list[Any]:  # fmt: skip
    """Takes the place of aioice's `Connection.get_component_candidates`."""
    candidates = []
    for address in addresses:
        if ipv4 and ":" in address:
            continue
        sock = bind_within(address, ports)
        if sock is None:
            continue
        protocol = await _listen(connection, sock)
        host, port = sock.getsockname()[:2]
        protocol.local_candidate = aioice.candidate.Candidate(
            foundation=aioice.candidate.candidate_foundation("host", "udp", host),
            component=component,
            transport="udp",
            priority=aioice.candidate.candidate_priority(component, "host"),
            host=host,
            port=port,
            type="host",
        )
        connection._protocols.append(protocol)
        candidates.append(protocol.local_candidate)
    if not candidates:
        raise CapacityError("No port of rtc.ports is free. Try again later.", code="VA497")
    return candidates


async def _listen(connection: Any, sock: socket.socket) -> Any:
    _, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: aioice.ice.StunProtocol(connection), sock=sock
    )
    return protocol


def bind_within(address: str, ports: tuple[int, int]) -> socket.socket | None:
    """A UDP socket on the first free port from a random one on; None: all are taken, or the
    address can't be bound."""
    low, high = ports
    n = high - low + 1
    start = random.randrange(n)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for i in range(n):
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            sock.setblocking(False)
            sock.bind((address, low + (start + i) % n))
        except OSError:
            sock.close()
            continue
        return sock
    return None


def with_public_address(sdp: str, address: str) -> str:
    """The answer with `address` in every IPv4 candidate and connection line (RFC 8839)."""
    lines: list[str] = []
    for line in sdp.splitlines():
        words = line.split(" ")
        if line.startswith("a=candidate:") and len(words) > 5 and _is_ipv4(words[4]):
            words[4] = address
        elif line.startswith("c=IN IP4 "):
            words[2] = address
        text = " ".join(words)
        if text not in lines or not text.startswith("a=candidate:"):
            lines.append(text)
    return "\r\n".join(lines) + "\r\n"


def _is_ipv4(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 4
    except ValueError:
        return False
