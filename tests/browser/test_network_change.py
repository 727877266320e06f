"""The page in headless Chromium whose machine changes its network in the midst of a reply: the
interface is gone, and another one, with another address and behind another NAT, is there."""

from __future__ import annotations

import pytest

from gateway.config import RtcNetwork
from loadtest.bench.transport.namespaces import lacking
from tests.browser.test_reconnect import (
    STORY,
    Drive,
    in_the_midst_of_a_reply,
    silent_wav,
    went_on,
)
from tests.support.fake_call import FakeStack
from tests.support.nat import PORTS, PUBLIC, internet, mobile, office

pytestmark = [pytest.mark.browser, pytest.mark.slow]

__all__ = ["silent_wav"]
SAID_S = 8.0  # by then the server has closed what the browser might ask over again


@pytest.mark.parametrize(
    ("silently", "webrtc"), [(False, ""), (True, ""), (False, "missing"), (True, "missing")]
)
def test_a_reply_goes_on_from_another_network(
    drive: Drive, silent_wav: str, silently: bool, webrtc: str
) -> None:
    """silently: the browser is not told either, and finds out by what does not come."""
    if lack := lacking("iptables"):
        pytest.skip(f"NOT RUN: needs {lack}")
    stack = FakeStack(greeting=STORY, reply_s=60.0)
    rtc = RtcNetwork(ports=PORTS, public_address=PUBLIC)
    with internet() as net, mobile(net) as other:
        with office(net, stack, rtc=rtc, page="public") as server:
            change = other.take_over_silently if silently else other.take_over
            assert other.carried() == 0
            with in_the_midst_of_a_reply(stack, change, SAID_S), net.home.entered():
                saw = drive(server.url, "resume", wav=silent_wav, secure=server.url, webrtc=webrtc)
            metrics = server.gateway.metrics.render().decode()
        assert other.carried() > 100, "the rest of the call"
    went_on(saw, stack, losses=3)  # packets of the old line may come by the new network for a while
    assert 'line_losses_total{what="resumed"} 1.0' in metrics
    by = "websocket" if webrtc else "webrtc"
    assert f'calls_ended_total{{reason="caller_hung_up",transport="{by}"}} 1.0' in metrics
