"""The page at home, the server in an office, a NAT before each, and no UDP but to the relay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import IceServer, RtcNetwork
from loadtest.bench.transport.namespaces import lacking
from tests.support.coturn import PORT, coturn
from tests.support.fake_call import FakeStack
from tests.support.nat import PORTS, PUBLIC, RELAY, internet, office

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SECRET = "known-to-both-servers"


def test_the_page_talks_through_the_relay(
    drive: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    if lack := lacking("iptables", "turnserver"):
        pytest.skip(f"NOT RUN: needs {lack}")
    stack = FakeStack(
        reply_s=9.0, transcripts=("Could you tell me when the museum opens tomorrow?", "And then?"),
        reply_text="The museum opens at ten tomorrow morning, and the last tickets are sold at "
        "half past four. On Thursdays it stays open until nine in the evening.",
    )  # fmt: skip
    turn = IceServer((f"turn:{RELAY}:{PORT}?transport=udp",), secret=SECRET)
    rtc = RtcNetwork(ports=PORTS, public_address=PUBLIC, ice_servers=(turn,))
    with internet() as net, coturn(net.relay, tmp_path, RELAY, SECRET, PUBLIC) as log:
        net.only_relayed()
        with office(net, stack, rtc=rtc, page="public") as server:
            with net.home.entered():
                saw = drive(server.url, "call", secure=server.url)
            metrics = server.gateway.metrics.render().decode()
    assert saw["connected"]
    assert saw["agent_rms"] > 0.01
    assert saw["heard_while_speaking"]
    assert saw["ended"] == "Call ended"
    assert 'transport="webrtc"' in metrics
    assert 'transport="websocket"' not in metrics
    assert "CHANNEL_BIND processed, success" in log()
