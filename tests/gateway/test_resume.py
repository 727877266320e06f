"""A call whose line was lost: what opens it again, how long it waits, and what goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
import websockets

from gateway.line_call import LineCall
from gateway.ops import overview
from gateway.page_socket import CLOSE_GONE, CLOSE_MOVING, RESUME_SUBPROTOCOL, SUBPROTOCOL
from gateway.resume import JOURNAL, Credential, Journal, find
from tests.support.fake_call import FakeCall, FakeStack
from tests.support.live_server import Running, serving
from tests.support.rtc_peer import Peer, peer
from voice_agent.errors import UsageError
from voice_agent.events import EndReason
from voice_agent.types import IN_FRAME, IN_RATE, OUT_FRAME

pytestmark = pytest.mark.unit
KEY = "0123456789abcdef-a-test-key"
LONG = "so it goes on and on " * 60


# ------------------------------------------------------------ the credential


def test_each_credential_is_used_once() -> None:
    credential = Credential()
    first = credential.renew()
    assert credential.fits(first)
    second = credential.renew()
    assert second != first
    assert credential.fits(first), "the answer with the second may have been lost"
    assert credential.fits(second)
    credential.settle()
    assert not credential.fits(first)
    assert credential.fits(second)
    credential.end()
    assert not credential.fits(second)


@pytest.mark.parametrize("token", ["", "a", "é\ud800", "x" * 100_000])
def test_nonsense_fits_nothing(token: str) -> None:
    credential = Credential()
    assert not credential.fits(token)
    credential.renew()
    assert not credential.fits(token)


def test_nothing_that_is_kept_is_the_credential() -> None:
    credential = Credential()
    token = credential.renew()
    assert len(token) >= 43, "256 bits"
    assert token not in repr(vars(credential))


def test_a_credential_opens_its_own_call_only() -> None:
    class Kept:
        def __init__(self) -> None:
            self.credential = Credential()

    a, b = Kept(), Kept()
    token = b.credential.renew()
    a.credential.renew()
    calls: Any = [a, b]
    assert find(calls, token) is b  # type: ignore[comparison-overlap]
    b.credential.end()
    with pytest.raises(UsageError) as refused:
        find(calls, token)
    assert refused.value.code == "VA498"
    assert token not in str(refused.value)


def test_the_journal_tells_what_was_missed() -> None:
    journal = Journal()
    for n in range(5):
        journal.add(str(n))
    assert journal.after(3) == ["3", "4"]
    assert journal.after(0) == ["0", "1", "2", "3", "4"]
    assert journal.after(5) == journal.after(99) == []
    for n in range(5, 5 + JOURNAL):
        journal.add(str(n))
    assert journal.after(0) == [str(n) for n in range(5, 5 + JOURNAL)], "the newest are kept"


# ------------------------------------------------------------ over WebRTC


def only_call(server: Running) -> LineCall:
    (call,) = server.gateway.resumable
    return call


async def until(true: Any) -> None:
    async with asyncio.timeout(15):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def connected(server: Running, p: Peer, path: str = "/rtc/offer", **body: Any) -> str:
    """The credential that came with the answer."""
    response = await p.connect(server, path, **body)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    token: str = response.json()["resume"]
    return token


def die(p: Peer) -> None:
    """No goodbye: nothing leaves any more and nothing is answered."""
    p.microphone.stop()
    for transceiver in p.pc.getTransceivers():
        ice = transceiver.sender.transport.transport._connection
        for protocol in ice._protocols:
            protocol.transport.abort()


def counted(server: Running, what: str) -> float:
    return float(server.gateway.metrics.line_losses.labels(what)._value.get())


@pytest.mark.parametrize("media_workers", [0, 1])
async def test_a_reply_goes_on_over_another_line(media_workers: int) -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack, media_workers=media_workers) as server, peer() as p, peer() as q:
        first = await connected(server, p)
        await p.until("heard", 3)
        (call,) = stack.calls
        die(p)
        await until(lambda: call.lost)
        assert call.losses == [800], "so much of our voice went into the void"
        at = call.played
        n_heard = len(call.heard)
        await asyncio.sleep(0.1)
        assert call.played == at, "it waits at the sample"
        assert len(call.heard) == n_heard, "and media time with it"
        assert server.gateway.admission.active == 1
        kept_s = overview(server.gateway)["live"][0]["kept_s"]
        assert 0 < kept_s < server.gateway.config.hold_s, "the operator sees that it waits"
        seen = len(p.events)
        second = await connected(server, q, "/rtc/resume", resume=first, seen=seen)
        back = await q.until("line")
        assert back["gap_ms"] > 100
        assert "resume" not in back
        await until(lambda: len(q.sink.payloads) > 40)
        spectrum = np.abs(np.fft.rfft(q.heard()[-3200:] * np.hanning(3200)))
        assert abs(int(np.argmax(spectrum)) * 5 - call.hz) < 15, "it is heard there"
        assert not call.lost
        assert call.ended is None
        assert overview(server.gateway)["live"][0]["kept_s"] is None
        assert at is not None
        assert call.played is not None
        assert call.played > at
        texts = [e for e in p.events + q.events if e["type"] == "text"]
        assert "".join(e["delta"] for e in texts) == LONG, "nothing is told twice or left out"
        assert [e["type"] for e in p.events + q.events].count("started") == 1
        gone = await refused(server, resume=first)
        assert gone.status_code == 410, "it was used"
        q.channel.send(json.dumps({"type": "hangup"}))
        assert (await q.until("ended"))["reason"] == "caller_hung_up"
        await until(lambda: not server.gateway.live)
        assert (await refused(server, resume=second)).status_code == 410, "it ended with the call"
        assert [counted(server, w) for w in ("lost", "resumed", "expired", "back")] == [1, 1, 0, 0]
        assert not server.gateway.resumable


async def refused(server: Running, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        offer = {"type": "offer", "sdp": "v=0\r\n", **body}
        return await client.post(f"{server.url}/rtc/resume", json=offer)


async def test_after_its_time_the_call_ends_with_a_reason() -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack, hold_s=0.3) as server, peer() as p:
        token = await connected(server, p)
        await p.until("heard")
        die(p)
        await until(lambda: not server.gateway.live)
        assert stack.calls[0].ended is EndReason.TRANSPORT_LOST
        assert (await refused(server, resume=token)).json()["error"]["code"] == "VA498"
        assert [counted(server, w) for w in ("lost", "resumed", "expired")] == [1, 0, 1]
        metrics = server.gateway.metrics.render().decode()
        assert 'calls_ended_total{reason="transport_lost",transport="webrtc"} 1.0' in metrics


async def test_a_line_that_comes_back_by_itself_goes_on() -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack) as server, peer() as p:
        await connected(server, p)
        await p.until("heard", 2)
        (call,) = stack.calls
        recv = p.microphone.recv
        held = asyncio.Event()

        async def stuck() -> Any:
            await held.wait()
            return await recv()

        p.microphone.recv = stuck  # type: ignore[method-assign]
        await until(lambda: call.lost)
        told = len(p.events)
        at = call.played
        held.set()
        await until(lambda: not call.lost)
        assert (await p.until("line"))["gap_ms"] >= 0
        await until(lambda: (call.played or 0) > (at or 0))
        assert len(p.events) > told
        assert [counted(server, w) for w in ("lost", "back", "resumed")] == [1, 1, 0]


async def test_a_new_line_takes_over_while_the_old_one_lives() -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack) as server, peer() as p, peer() as q:
        token = await connected(server, p)
        await p.until("heard", 2)
        (call,) = stack.calls
        before = len(server.gateway.pacer)
        line: Any = only_call(server)._carrier.line  # type: ignore[union-attr]
        close = line.close

        async def stumbles() -> None:
            await close()
            raise RuntimeError("the old line does not close cleanly")

        line.close = stumbles
        await connected(server, q, "/rtc/resume", resume=token, silent_ms=300)
        await q.until("heard", 2)
        assert call.losses == [300]
        await until(lambda: p.pc.connectionState in ("closed", "failed"))
        assert len(server.gateway.pacer) == before, "the old line has left the clock"
        n = len(p.events)
        await q.until("heard", 4)
        assert len(p.events) == n
        assert server.gateway.admission.active == 1
        assert call.ended is None


async def test_a_page_that_tries_again_before_it_was_connected() -> None:
    """The answer was lost on the way, or the line never came up: both credentials are good."""
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack) as server, peer() as p, peer() as q, peer() as r:
        token = await connected(server, p)
        await p.until("heard")
        die(p)
        await until(lambda: stack.calls[0].lost)
        async with httpx.AsyncClient() as client:
            await q.pc.setLocalDescription(await offer_of(q))
            lost_answer = await client.post(
                f"{server.url}/rtc/resume",
                json={"type": "offer", "sdp": q.pc.localDescription.sdp, "resume": token},
            )
        assert lost_answer.status_code == 200
        await connected(server, r, "/rtc/resume", resume=token)
        await r.until("heard", 2)
        assert stack.calls[0].ended is None
        assert (await refused(server, resume=lost_answer.json()["resume"])).status_code == 410


async def offer_of(p: Peer) -> Any:
    p.channel = p.pc.createDataChannel("events")
    p.pc.addTrack(p.microphone)
    return await p.pc.createOffer()


async def test_hanging_up_without_a_line() -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack) as server, peer() as p:
        token = await connected(server, p)
        await p.until("heard")
        die(p)
        await until(lambda: stack.calls[0].lost)
        async with httpx.AsyncClient() as client:
            body = {"type": "hangup", "resume": token}
            answer = await client.post(f"{server.url}/rtc/resume", json=body)
        assert answer.status_code == 200
        await until(lambda: not server.gateway.live)
    assert stack.calls[0].ended is EndReason.CALLER_HUNG_UP


@pytest.mark.parametrize(
    ("body", "status"),
    [({"resume": "nobody's"}, 410), ({"resume": 5}, 400), ({}, 400),
     ({"resume": "x", "sdp": 5}, 400), ({"resume": "x", "sdp": "x" * 70_000}, 400)],
)  # fmt: skip
async def test_what_opens_nothing_is_refused_with_words(body: dict[str, Any], status: int) -> None:
    async with serving(FakeStack()) as server:
        response = await refused(server, **body)
        assert response.status_code == status
        assert response.json()["error"]["message"]
        assert not server.gateway.live


async def test_a_credential_is_no_key_and_a_bad_offer_leaves_the_call_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack, api_keys=(KEY,)) as server, peer() as p, peer() as q:
        p_headers = {"authorization": f"Bearer {KEY}"}
        token = await keyed(server, p, p_headers)
        await p.until("heard")
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}) as client:
            for path in ("/rtc/offer", "/api/token", "/v1/realtime/calls"):
                body = {"type": "offer", "sdp": p.pc.localDescription.sdp}
                assert (await client.post(f"{server.url}{path}", json=body)).status_code == 401
        assert (await refused(server, resume=token)).status_code == 400, "no offer at all"
        assert stack.calls[0].ended is None
        await connected(server, q, "/rtc/resume", resume=token)  # the door asks for no key here
        await q.until("heard", 2)
    assert token not in caplog.text


async def keyed(server: Running, p: Peer, headers: dict[str, str]) -> str:
    from aiortc import RTCSessionDescription

    p.channel = p.pc.createDataChannel("events")
    p.channel.on("message", p._on_message)
    p.pc.on("track", p._on_track)
    p.pc.addTrack(p.microphone)
    await p.pc.setLocalDescription(await p.pc.createOffer())
    body = {"type": "offer", "sdp": p.pc.localDescription.sdp}
    async with httpx.AsyncClient(headers=headers) as client:
        answer = (await client.post(f"{server.url}/rtc/offer", json=body)).json()
    await p.pc.setRemoteDescription(RTCSessionDescription(answer["sdp"], "answer"))
    token: str = answer["resume"]
    return token


# ------------------------------------------------------------ over a socket


class Speaker:
    """A page's socket that sends sound all the time, until it is gone."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket
        self.told: list[dict[str, Any]] = []
        self.sound = 0
        self.token = ""

    async def speak(self) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                await self.socket.send(bytes(2 * IN_FRAME))
                await asyncio.sleep(IN_FRAME / IN_RATE)

    async def listen(self) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            async for message in self.socket:
                if isinstance(message, bytes):
                    self.sound += len(message) // (2 * OUT_FRAME)
                elif "resume" in (data := json.loads(message)):
                    self.token = data["resume"]
                else:
                    self.told.append(data)

    def types(self) -> list[str]:
        return [data["type"] for data in self.told]


@contextlib.asynccontextmanager
async def speaker(server: Running, token: str = "", seen: int = 0) -> AsyncIterator[Speaker]:
    path = f"/rtc/resume?seen={seen}" if token else "/rtc/socket"
    more = [RESUME_SUBPROTOCOL + token] if token else []
    protocols: list[Any] = [SUBPROTOCOL, *more]
    url = f"{server.ws}{path}"
    async with websockets.connect(url, subprotocols=protocols, ping_interval=None) as socket:
        assert socket.subprotocol == SUBPROTOCOL
        caller = Speaker(socket)
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(job) for job in (caller.listen(), caller.speak())]
            yield caller
            for job in jobs:
                job.cancel()


@pytest.mark.parametrize("how", ["cut", "moving"])
async def test_a_reply_goes_on_over_another_socket(how: str) -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack) as server:
        async with speaker(server) as page:
            await until(lambda: page.types().count("heard") >= 3)
            if how == "cut":
                page.socket.transport.abort()  # no closing handshake
            else:
                await page.socket.close(CLOSE_MOVING)
        (call,) = stack.calls
        await until(lambda: call.lost)
        at = call.played or 0
        async with speaker(server, page.token, seen=len(page.told)) as again:
            await until(lambda: (call.played or 0) > at and again.sound > 3)
            assert again.token not in ("", page.token)
            assert call.ended is None
            assert "line" in again.types()
            assert "started" not in again.types()
            await again.socket.send(json.dumps({"type": "hangup"}))
            await until(lambda: not server.gateway.live)
    assert call.ended is EndReason.CALLER_HUNG_UP


async def test_a_silent_socket_waits_and_goes_on() -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack) as server, speaker(server) as page:
        await until(lambda: page.types().count("heard") >= 2)
        (call,) = stack.calls
        send, held = page.socket.send, asyncio.Event()

        async def stuck(data: Any) -> None:
            await held.wait()
            await send(data)

        page.socket.send = stuck  # type: ignore[method-assign]
        await until(lambda: call.lost)
        at = call.played
        await asyncio.sleep(0.1)
        assert call.played == at
        held.set()
        await until(lambda: not call.lost)
        await until(lambda: "line" in page.types())
        await until(lambda: (call.played or 0) > (at or 0))


async def test_from_webrtc_to_a_socket_and_a_wrong_credential() -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack) as server, peer() as p:
        token = await connected(server, p)
        await p.until("heard", 2)
        (call,) = stack.calls
        die(p)
        await until(lambda: call.lost)
        async with speaker(server, "nobody's") as stranger:
            async with asyncio.timeout(10):
                await stranger.socket.wait_closed()
            assert stranger.socket.close_code == CLOSE_GONE
            assert "start a new one" in str(stranger.socket.close_reason)
        async with speaker(server, token, seen=len(p.events)) as page:
            await until(lambda: page.types().count("heard") >= 2)
            assert call.behind_ms[-1] == server.gateway.config.websocket_lead_ms
            assert call.ended is None
            assert only_call(server)


async def test_a_page_that_hangs_up_is_not_waited_for() -> None:
    stack = FakeStack()
    async with serving(stack) as server:
        async with speaker(server) as page:
            await until(lambda: "started" in page.types())
            await page.socket.close()
        await until(lambda: not server.gateway.live)
    assert stack.calls[0].ended is EndReason.CALLER_HUNG_UP


async def test_a_call_that_ends_while_it_waits() -> None:
    stack = FakeStack(greeting=LONG, reply_s=30.0)
    async with serving(stack) as server, peer() as p:
        token = await connected(server, p)
        await p.until("heard")
        die(p)
        await until(lambda: stack.calls[0].lost)
        stack.calls[0].hang_up(EndReason.MAX_DURATION)
        await until(lambda: not server.gateway.live)
        assert (await refused(server, resume=token)).status_code == 410
        assert counted(server, "expired") == 0
    assert isinstance(stack.calls[0], FakeCall)
