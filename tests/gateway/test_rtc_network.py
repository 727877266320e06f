"""Ports, public address and ICE servers of WebRTC calls."""

from __future__ import annotations

import re
import socket
from typing import Any

import httpx
import pytest
from aiortc import RTCPeerConnection
from pydantic import ValidationError

from gateway.config import IceServer, RtcNetwork
from gateway.rtc_network import bind_within, use_ports, with_public_address
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving
from tests.support.rtc_peer import peer
from voice_agent.rtc_section import RtcConfig

pytestmark = pytest.mark.unit


def free_range(n: int) -> tuple[int, int]:
    """n UDP ports in a row that are free now."""
    for low in range(41_000, 60_000, 100):
        socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(n)]
        try:
            for i, sock in enumerate(socks):
                sock.bind(("0.0.0.0", low + i))
        except OSError:
            continue
        finally:
            for sock in socks:
                sock.close()
        return low, low + n - 1
    raise AssertionError("no free ports")


def candidates(sdp: str) -> list[tuple[str, int]]:
    found = re.findall(r"a=candidate:\S+ 1 udp \d+ (\S+) (\d+) typ host", sdp)
    return [(address, int(port)) for address, port in found]


def test_a_bound_socket_is_within_the_range_and_a_full_one_says_so() -> None:
    low, high = ports = free_range(3)
    socks = [bind_within("127.0.0.1", ports) for _ in range(3)]
    got = sorted(sock.getsockname()[1] for sock in socks if sock is not None)
    assert got == list(range(low, high + 1))
    assert bind_within("127.0.0.1", ports) is None
    for sock in socks:
        assert sock is not None
        sock.close()


def test_the_public_address_stands_in_every_ipv4_candidate_once() -> None:
    sdp = (
        "v=0\r\nc=IN IP4 10.0.0.7\r\n"
        "a=candidate:1 1 udp 2130706431 10.0.0.7 40001 typ host\r\n"
        "a=candidate:2 1 udp 2130706431 fd00::2 40002 typ host\r\n"
        "a=candidate:1 1 udp 2130706431 10.0.0.7 40001 typ host\r\n"
    )
    assert with_public_address(sdp, "203.0.113.9") == (
        "v=0\r\nc=IN IP4 203.0.113.9\r\n"
        "a=candidate:1 1 udp 2130706431 203.0.113.9 40001 typ host\r\n"
        "a=candidate:2 1 udp 2130706431 fd00::2 40002 typ host\r\n"
    )


@pytest.mark.parametrize("workers", [0, 1])
async def test_calls_use_the_ports_and_the_last_one_is_told_that_there_is_none(
    workers: int,
) -> None:
    async with peer() as probe:
        await probe.pc.setLocalDescription(await _offer(probe.pc))
        n_addresses = len({a for a, _ in candidates(probe.pc.localDescription.sdp) if "." in a})
    low, _ = ports = free_range(1)
    network = RtcNetwork(ports=ports)
    serve = serving(FakeStack(), rtc=network, media_workers=workers)
    async with serve as server, peer() as p, peer() as q:
        await p.connect(server)
        await p.until("started")
        used = candidates(p.answer)
        assert n_addresses >= 1
        assert used
        assert {port for _, port in used} == {low}
        response = await q.connect(server)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "VA497"
    again = bind_within("127.0.0.1", ports)  # all were given back
    assert again is not None
    again.close()


async def _offer(pc: RTCPeerConnection) -> Any:
    pc.createDataChannel("events")
    return await pc.createOffer()


async def test_this_aioice_can_be_told_its_ports() -> None:
    pc = RTCPeerConnection()
    await _offer(pc)
    use_ports(pc, (40_000, 40_001), True)
    await pc.close()


async def test_the_answer_carries_the_public_address() -> None:
    network = RtcNetwork(ports=free_range(40), public_address="203.0.113.9")
    async with serving(FakeStack(), rtc=network) as server, peer() as p:
        assert (await p.connect(server)).status_code == 200
        assert {address for address, _ in candidates(p.answer)} == {"203.0.113.9"}


async def test_clients_are_told_their_servers() -> None:
    turn = IceServer(("turn:turn.example.org:3478?transport=udp",), "ann", "secret")
    network = RtcNetwork(ice_servers=(turn, IceServer(("stun:stun.example.org",))))
    async with serving(FakeStack(), rtc=network) as server, httpx.AsyncClient() as client:
        body = (await client.get(f"{server.url}/rtc/servers")).json()
    assert body["iceServers"] == [
        {"urls": ["turn:turn.example.org:3478?transport=udp"], "username": "ann",
         "credential": "secret"},
        {"urls": ["stun:stun.example.org"]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [{"ports": "40000"}, {"ports": "50-60"}, {"ports": "40001-40000"}, {"public_address": "me"},
     {"ice_servers": [{"urls": "http://x"}]}, {"ice_servers": [{}]}],
)  # fmt: skip
def test_mistakes_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RtcConfig(**bad)


def test_settings_are_read() -> None:
    config = RtcConfig.model_validate(
        {"ports": "40000-40099", "ice_servers": [{"urls": "turn:a,turns:b"}]}
    )
    assert config.port_range == (40_000, 40_099)
    assert config.ice_servers[0].urls == ("turn:a", "turns:b")
    assert RtcConfig().port_range is None
