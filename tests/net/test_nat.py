"""Calls between two networks with a NAT in front of each: directly, and through a TURN server.

Real sockets, the kernel's NAT (iptables), aiortc as the caller's side, coturn as the relay; the
conversation is a scripted one, so that what is tested is the line.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from aioice.ice import CandidatePair
from aioice.stun import TransactionFailed
from aioice.turn import create_turn_endpoint
from aiortc import RTCConfiguration, RTCIceServer
from aiortc.rtcconfiguration import RTCIceTransportPolicy

from gateway.config import IceServer, RtcNetwork
from gateway.turn_account import LIFETIME_S, turn_account
from loadtest.bench.transport.namespaces import lacking
from tests.support.coturn import PORT, coturn
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running
from tests.support.nat import KEY, OFFICE, PORTS, PUBLIC, RELAY, Internet, internet, office
from tests.support.rtc_peer import Peer, peer
from voice_agent.types import FrameFlag

pytestmark = pytest.mark.e2e

SECRET = "known-to-both-servers"


@pytest.fixture
def net() -> Iterator[Internet]:
    if lack := lacking("iptables"):
        pytest.skip(f"NOT RUN: needs {lack}")
    with internet() as made:
        yield made


@pytest.fixture
def turn_log(net: Internet, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Of a relay that is all that home reaches over UDP."""
    if lack := lacking("turnserver"):
        pytest.skip(f"NOT RUN: needs {lack}")
    net.only_relayed()
    with coturn(net.relay, tmp_path, RELAY, SECRET, PUBLIC) as log:
        yield log


def way(p: Peer) -> CandidatePair:
    """The pair of addresses that the caller's packets take."""
    assert p.pc.sctp is not None
    pair = p.pc.sctp.transport.transport._connection._nominated[1]
    assert isinstance(pair, CandidatePair)
    return pair


def addresses(sdp: str) -> set[tuple[str, int]]:
    found = re.findall(r"a=candidate:\S+ 1 udp \d+ (\S+) (\d+) ", sdp)
    return {(address, int(port)) for address, port in found}


async def both_are_heard(p: Peer, stack: FakeStack) -> None:
    await p.until("heard", 2)
    (call,) = stack.calls
    p.microphone.loud = True
    await p.until("partial")
    p.microphone.loud = False
    await p.until("final")
    await p.until("heard", 8, reply=1)
    received = [f.flag for f in call.heard].count(FrameFlag.RECEIVED)
    assert received > 0.7 * len(call.heard) - 10
    spectrum = np.abs(np.fft.rfft(p.heard()[-3200:] * np.hanning(3200)))
    assert abs(int(np.argmax(spectrum)) * 5 - call.hz) < 15


async def test_a_caller_behind_a_nat_reaches_a_server_behind_another(net: Internet) -> None:
    stack = FakeStack(greeting="Hello, how can I help?", reply_s=2.0)
    rtc = RtcNetwork(ports=PORTS, public_address=PUBLIC)
    with office(net, stack, rtc=rtc, media_workers=1) as server, net.home.entered():
        async with peer(key=KEY) as p:
            assert (await p.connect(server)).status_code == 200
            assert {address for address, _ in addresses(p.answer)} == {PUBLIC}
            assert all(PORTS[0] <= port <= PORTS[1] for _, port in addresses(p.answer))
            await both_are_heard(p, stack)
            assert way(p).remote_candidate.host == PUBLIC
        nat = net.packets("POSTROUTING", table="nat")
        assert nat["MASQUERADE"] >= 2, "the web's connection, and the media's"


async def test_without_the_public_address_nobody_comes_through(net: Internet) -> None:
    """What the test above owes to the rewritten answer."""
    stack = FakeStack(greeting="Hello.")
    with (
        office(net, stack, rtc=RtcNetwork(ports=PORTS), connect_timeout_s=2.0) as server,
        net.home.entered(),
    ):
        async with peer(key=KEY) as p:
            assert (await p.connect(server)).status_code == 200
            assert {address for address, _ in addresses(p.answer)} == {OFFICE}
            p.pc.on("connectionstatechange", lambda: states.append(p.pc.connectionState))
            states = [p.pc.connectionState]
            while server.gateway.live:  # noqa: ASYNC110 - until it has given up
                await asyncio.sleep(0.05)
        assert "connected" not in states
        assert not stack.calls


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_a_caller_whose_udp_is_blocked_is_relayed(
    net: Internet, turn_log: Callable[[], str], transport: str
) -> None:
    stack = FakeStack(greeting="Hello, how can I help?", reply_s=2.0)
    turn = IceServer((f"turn:{RELAY}:{PORT}?transport={transport}",), secret=SECRET)
    rtc = RtcNetwork(ports=PORTS, public_address=PUBLIC, ice_servers=(turn,))
    with office(net, stack, rtc=rtc) as server, net.home.entered():
        async with peer(await relay_only(server), KEY) as p:
            assert (await p.connect(server)).status_code == 200
            assert {host for host, _ in addresses(p.pc.localDescription.sdp)} == {RELAY}
            await both_are_heard(p, stack)
            assert way(p).local_candidate.type == "relay"
            assert way(p).remote_candidate.host == PUBLIC
    assert SECRET not in turn_log()


async def relay_only(server: Running) -> RTCConfiguration:
    """What a page would make of what the server tells it."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
        told = (await client.get(f"{server.url}/rtc/servers")).json()["iceServers"]
    servers = [RTCIceServer(**one) for one in told]
    return RTCConfiguration(servers, iceTransportPolicy=RTCIceTransportPolicy.RELAY)


async def test_the_relay_sends_to_nobody_but_the_server(
    net: Internet, turn_log: Callable[[], str]
) -> None:
    """Not even to the office's inside, which it could reach."""
    username, password = turn_account(SECRET, time.time())
    with net.home.entered():
        transport, _ = await create_turn_endpoint(
            asyncio.DatagramProtocol, (RELAY, PORT), username, password
        )
        client = transport._TurnTransport__inner_protocol
        await client.channel_bind(0x4000, (PUBLIC, PORTS[0]))
        for n, address in enumerate((OFFICE, RELAY, "192.168.50.1"), 1):
            with pytest.raises(TransactionFailed, match="Forbidden"):
                await client.channel_bind(0x4000 + n, (address, 80))
        transport.close()
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("fault", ["over", "foreign"])
async def test_the_relay_takes_no_account_that_is_over_or_of_another_secret(
    net: Internet, turn_log: Callable[[], str], fault: str
) -> None:
    now = time.time() - (LIFETIME_S + 60 if fault == "over" else 0)
    account = turn_account(SECRET if fault == "over" else "another", now)
    servers = [RTCIceServer(f"turn:{RELAY}:{PORT}", *account)]
    relay = RTCConfiguration(servers, iceTransportPolicy=RTCIceTransportPolicy.RELAY)
    with net.home.entered():
        async with peer(relay) as p:
            p.pc.addTrack(p.microphone)
            await p.pc.setLocalDescription(await p.pc.createOffer())
            assert not addresses(p.pc.localDescription.sdp)
    assert "Cannot find credentials" in turn_log() or "ncorrect" in turn_log()
