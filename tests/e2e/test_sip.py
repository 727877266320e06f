"""Telephone calls over the real SIP stack: sipp and a telephone of another make against it.

The conversations are scripted ones, so that what is tested is the line; test_sip_models.py has the
real models.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx2
import numpy as np
import pytest
import pytest_asyncio

from gateway.config import EchoModes, GatewayConfig
from gateway.gateway import Gateway
from gateway.media.echo import EchoMode
from gateway.media.g711 import encode_ulaw
from gateway.sip.call import SipCall
from gateway.sip.settings import SipSettings, Trunk
from gateway.sip.telephone import Telephone
from tests.support import sipp as s
from tests.support.fake_call import FakeCall, FakeStack
from tests.support.live_server import Running, serving
from tests.support.sipp import NEEDS_SIPP, SippRun, sipp
from tests.support.telephone import HOST, free_udp, peer, until
from voice_agent.errors import UsageError
from voice_agent.events import EndReason
from voice_agent.types import FrameFlag, Pcm16

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CALLS = 16
LEVEL = 8000


class Line:
    """The server under test."""

    def __init__(self, port: int, running: Running, stack: FakeStack) -> None:
        self.port = port
        self.running = running
        self.stack = stack

    @property
    def uri(self) -> str:
        return f"sip:agent@{HOST}:{self.port}"

    @property
    def telephone(self) -> Telephone:
        telephone = self.running.app.state.telephone
        assert isinstance(telephone, Telephone)
        return telephone

    async def sipp(self, folder: Path, name: str, steps: Sequence[str], calls: int = 1) -> SippRun:
        """A scenario that must go as written, to the end of our clean-up."""
        run = await sipp(folder, name, steps, self.port, calls=calls)
        assert run.ok, run.log
        await self.idle()
        return run

    async def idle(self) -> None:
        """Every call is cleaned up; the next one begins afresh."""
        await until(lambda: not self.running.gateway.live, "the end of every call")
        await until(lambda: not self.telephone.lines, "the end of every line")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Line]:
    port, rtp = free_udp(2), free_udp(4 * CALLS + 8)
    settings = SipSettings(port=port, rtp_ports=(rtp, rtp + 4 * CALLS + 7), allow=("*@127.0.0.1",))
    stack = FakeStack(greeting="Hello there.", reply_s=1.0, hz=440.0, interruptible=False)
    # the canceller takes a caller who hums one note while we do for an echo
    echo = EchoModes(telephone=EchoMode.OFF)
    async with serving(stack, sip=settings, max_calls=CALLS, echo=echo) as running:
        yield Line(port, running, stack)


@pytest_asyncio.fixture(loop_scope="module")
async def line(server: Line) -> AsyncIterator[Line]:
    server.stack.calls.clear()
    yield server
    await server.running.gateway.hang_up_all()  # of a test that failed
    await server.idle()


@pytest.fixture
def tone_file(tmp_path: Path) -> Path:
    """Two seconds of a tone as mu-law."""
    path = tmp_path / "tone.ulaw"
    path.write_bytes(encode_ulaw(tone_8k(2.0)))
    return path


def tone_8k(seconds: float) -> Pcm16:
    t = np.arange(int(seconds * 8000)) / 8000
    return (LEVEL * np.sin(2 * np.pi * 700 * t)).astype(np.int16)


def loudness(frames: list[Pcm16]) -> float:
    """Mean level of the middle one by loudness: the ends of a sound are not its level."""
    return float(np.median([np.abs(frame.astype(float)).mean() for frame in frames]))


def received(call: FakeCall) -> list[Pcm16]:
    """The frames that came over the line."""
    return [frame.pcm for frame in call.heard if frame.flag is FrameFlag.RECEIVED]


# ---------------------------------------------------------------- sipp


@NEEDS_SIPP
async def test_a_caller_hears_and_is_heard(line: Line, tmp_path: Path, tone_file: Path) -> None:
    steps = [*s.answered(), s.stream(tone_file), s.pause(1200), *s.HANG_UP]
    await line.sipp(tmp_path, "call", steps)
    (call,) = line.stack.calls
    assert call.ended is EndReason.CALLER_HUNG_UP
    assert len(received(call)) >= 25
    assert loudness(received(call)) == pytest.approx(LEVEL * 2 / np.pi, rel=0.1)


@NEEDS_SIPP
@pytest.mark.parametrize("codec", ["0", "8"])
async def test_the_offer_may_come_with_the_acknowledgement(
    line: Line, tmp_path: Path, codec: str
) -> None:
    answer = s.sdp(codec, port="[rtpstream_audio_port]")
    steps = [s.invite(""), *s.RINGING, s.got(200), s.request("ACK", 1, answer), *s.probed()]
    await line.sipp(tmp_path, "delayed", [*steps, s.pause(300), *s.HANG_UP])
    assert line.stack.calls[0].ended is EndReason.CALLER_HUNG_UP


@NEEDS_SIPP
async def test_a_caller_who_gives_up_while_it_rings(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(call: SipCall) -> None:
        pass  # never answers: the caller cancels before

    monkeypatch.setattr(SipCall, "_pick_up", slow)
    steps = [
        s.invite(), s.got(100, optional=True), s.got(180), s.CANCEL,
        s.got(200), s.got(487), s.ACK,
    ]  # fmt: skip
    await line.sipp(tmp_path, "cancel", steps)
    await line.idle()
    assert line.stack.calls[0].ended is None, "the conversation never began"


@NEEDS_SIPP
async def test_hold_and_its_end(line: Line, tmp_path: Path, tone_file: Path) -> None:
    def reinvite(n: int, direction: str, answer: str) -> list[str]:
        offer = s.sdp(port="[rtpstream_audio_port]", direction=direction)
        return [
            s.request("INVITE", n, offer), s.got(100, optional=True),
            s.got(200, action=s.has(f"a={answer}")), s.request("ACK", n),
        ]  # fmt: skip

    steps = [
        *s.answered(), s.stream(tone_file), s.pause(400), *reinvite(2, "sendonly", "recvonly"),
        s.pause(600), *reinvite(3, "sendrecv", "sendrecv"), s.pause(600), *s.HANG_UP,
    ]  # fmt: skip
    await line.sipp(tmp_path, "hold", steps)
    assert line.stack.calls[0].ended is EndReason.CALLER_HUNG_UP


@NEEDS_SIPP
async def test_keys_by_info(line: Line, tmp_path: Path) -> None:
    steps = s.answered()
    for n, key in enumerate("4*#"):
        body = f"Signal={key}\nDuration=160\n"
        steps += [s.request("INFO", 2 + n, body, kind="application/dtmf-relay"), s.got(200)]
    await line.sipp(tmp_path, "info", [*steps, s.pause(200), *s.HANG_UP])
    assert line.stack.calls[0].keys == ["4", "*", "#"]


@NEEDS_SIPP
async def test_options_are_answered(line: Line, tmp_path: Path) -> None:
    steps = [s.request("OPTIONS", 1, inside=False), s.got(200, action=s.has("Allow:.*INVITE"))]
    await line.sipp(tmp_path, "options", steps)
    assert line.stack.calls == []


@NEEDS_SIPP
async def test_a_full_server_and_a_draining_one_are_busy(line: Line, tmp_path: Path) -> None:
    steps = [s.invite(), *s.RINGING, s.got(486), s.ACK]
    admission = line.running.gateway.admission
    admission.max_calls = 0
    try:
        await line.sipp(tmp_path, "busy", steps)
        admission.max_calls, admission.draining = CALLS, True
        await line.sipp(tmp_path, "drain", steps)
    finally:
        admission.max_calls, admission.draining = CALLS, False
    assert line.stack.calls == []


@NEEDS_SIPP
async def test_who_is_not_on_the_list_is_not_answered(line: Line, tmp_path: Path) -> None:
    who = ("sip:sipp@[local_ip]:[local_port]>;tag", "sip:x@elsewhere.example>;tag")
    steps = [s.invite().replace(*who), *s.RINGING, s.got(486), s.ACK.replace(*who)]
    await line.sipp(tmp_path, "stranger", steps)
    assert line.stack.calls == []


@NEEDS_SIPP
async def test_sixteen_calls_at_once(line: Line, tmp_path: Path, tone_file: Path) -> None:
    steps = [*s.answered(), s.stream(tone_file), s.pause(2500), *s.HANG_UP]
    run = await line.sipp(tmp_path, "sixteen", steps, calls=CALLS)
    assert run.stats["SuccessfulCall(C)"] == str(CALLS)
    assert len(line.stack.calls) == CALLS
    for call in line.stack.calls:
        assert call.ended is EndReason.CALLER_HUNG_UP
        assert len(received(call)) >= 0.8 * 2.3 * 50, "each was heard all the time"


@NEEDS_SIPP
async def test_callers_who_leave_at_any_moment_leave_nothing_behind(
    line: Line, tmp_path: Path
) -> None:
    up = [s.invite(), *s.RINGING, s.got(200), s.ACK]
    moments = [[], [s.pause(30)], [s.asked("INVITE")], [*s.probed(), s.pause(100)]]
    for n, moment in enumerate(moments):
        await line.sipp(tmp_path, f"leave{n}", [*up, *moment, *s.HANG_UP])
    ends = {call.ended for call in line.stack.calls}
    assert len(line.stack.calls) == len(moments)
    assert ends <= {EndReason.CALLER_HUNG_UP, None}, "None: gone before the conversation began"


# ---------------------------------------------------------------- a trunk, played by sipp


def registrar(password: str) -> list[str]:
    """Asks for a password and looks whether it is right; 200 or 403."""
    challenge = 'WWW-Authenticate: Digest realm="trunk", nonce="n1", algorithm=MD5'
    return [
        s.asked("REGISTER"),
        s.response("401 Unauthorized", more=challenge),
        '<recv request="REGISTER"><action><verifyauth assign_to="right" username="acct" '
        f'password="{password}"/></action></recv>',
        '<nop test="right" next="1"></nop>',
        s.response("403 Forbidden").replace("<send>", '<send next="2">'),
        '<label id="1"/>',
        s.response("200 OK", more="[last_Contact:];expires=300"),
        '<label id="2"/><Reference variables="right"/>',
    ]


@NEEDS_SIPP
@pytest.mark.parametrize(("password", "accepted"), [("secret", 1.0), ("wrong", 0.0)])
async def test_registering_at_a_trunk(
    tmp_path: Path, password: str, accepted: float, caplog: pytest.LogCaptureFixture
) -> None:
    trunk_port, port, rtp = free_udp(), free_udp(2), free_udp(8)
    trunk = Trunk(f"{HOST}:{trunk_port}", "line1", password, auth_user="acct")
    settings = SipSettings(port=port, rtp_ports=(rtp, rtp + 7), trunk=trunk, direct=False)
    gateway = Gateway(FakeStack(), GatewayConfig())
    telephone = Telephone(gateway, settings)
    async with asyncio.TaskGroup() as group:
        at_trunk = group.create_task(
            sipp(tmp_path, "registrar", registrar("secret"), None, own=trunk_port)
        )
        running = group.create_task(telephone.run())
        run = await at_trunk
        assert run.ok, run.log
        await until(lambda: "sip_registered" in telephone.gauges(), "the trunk's answer")
        elsewhere = await sipp(tmp_path, "direct", [s.invite(), s.got(404), s.ACK], port)
        running.cancel()
    assert elsewhere.ok, f"a call that is not for the trunk's number: {elsewhere.log}"
    assert telephone.gauges()["sip_registered"] == accepted
    told = [record for record in caplog.records if record.name == "gateway.sip.telephone"]
    assert any("403" in record.getMessage() for record in told) is (accepted == 0.0)
    assert "secret" not in caplog.text


# ---------------------------------------------------------------- a telephone of another make


async def test_sound_and_keys_in_both_directions(line: Line) -> None:
    async with peer() as phone:
        outgoing = await phone.call(line.uri)
        await phone.speak(tone_8k(1.5))
        call = line.stack.calls[0]
        assert loudness(received(call)) == pytest.approx(LEVEL * 2 / np.pi, rel=0.1)
        assert loudness(phone.heard) > 500.0, "the greeting"
        assert phone.rtp is not None
        phone.rtp.send_dtmf("7")
        await until(lambda: call.keys == ["7"], "a key of the caller's")
        assert call.line is not None
        await call.line.send_dtmf("2A#")
        await until(lambda: phone.keys == ["2", "A", "#"], "our keys")
        outgoing.hangup(phone.uac)
        await until(lambda: call.ended is not None, "the end")
        assert call.ended is EndReason.CALLER_HUNG_UP


async def test_on_hold_our_voice_waits(line: Line) -> None:
    async with peer() as phone:
        outgoing = await phone.call(line.uri)
        call = line.stack.calls[0]
        await until(lambda: call.played, "the greeting")
        phone.hold(outgoing, True)
        before = -1
        async with asyncio.timeout(10.0):
            while before != len(call.heard):
                before = len(call.heard)
                await asyncio.sleep(0.2)
        played = call.played
        assert played is not None
        assert played < 24_000, "the greeting waits in the middle"
        phone.hold(outgoing, False)
        await until(lambda: call.played is None, "the greeting's end")
        assert len(call.heard) > before
        outgoing.hangup(phone.uac)


async def test_our_goodbye_is_heard_before_we_hang_up(line: Line) -> None:
    async with peer() as phone:
        await phone.call(line.uri)
        call = line.stack.calls[0]
        await until(lambda: call.played, "the greeting")
        await until(lambda: call.played is None, "its end")
        call.hang_up(EndReason.AGENT_GOODBYE)
        await asyncio.wait_for(phone.hung_up.wait(), 10.0)
        # 1 s of a tone, over 500 in 96 % of its samples; a busy machine loses a frame or two
        assert np.count_nonzero(np.abs(np.concatenate(phone.heard)) > 500) >= 0.88 * 8000


async def test_a_transfer_ends_our_part(line: Line) -> None:
    async with peer() as phone:
        await phone.call(line.uri)
        call = line.stack.calls[0]
        assert call.line is not None
        moving = asyncio.create_task(call.line.transfer("sip:desk@127.0.0.1:9"))
        assert await asyncio.wait_for(phone.referred, 10.0) == "sip:desk@127.0.0.1:9"
        phone.notify(200)
        await moving
        await until(lambda: call.ended is not None, "the end")
        assert call.ended is EndReason.TRANSFERRED


async def test_a_transfer_that_fails_leaves_the_call(line: Line) -> None:
    async with peer() as phone:
        outgoing = await phone.call(line.uri)
        call = line.stack.calls[0]
        assert call.line is not None
        moving = asyncio.create_task(call.line.transfer("sip:desk@127.0.0.1:9"))
        await asyncio.wait_for(phone.referred, 10.0)
        phone.notify(486)
        with pytest.raises(UsageError, match="486"):
            await moving
        assert call.ended is None
        with pytest.raises(UsageError, match="sip:user@host"):
            await call.line.transfer("reception")
        outgoing.hangup(phone.uac)


async def test_we_call_someone(line: Line) -> None:
    async with peer() as phone, httpx2.AsyncClient(base_url=line.running.url) as client:
        asking = asyncio.create_task(client.post("/api/calls", json={"to": phone.uri}))
        incoming = await phone.answer()
        answer = await asking
        assert (answer.status_code, answer.json()) == (200, {"status": "answered"})
        await phone.speak(tone_8k(0.8))
        call = line.stack.calls[0]
        assert loudness(phone.heard) > 500.0, "the greeting"
        assert loudness(received(call)) == pytest.approx(LEVEL * 2 / np.pi, rel=0.1)
        incoming.hangup()
        await until(lambda: call.ended is not None, "the end")


@pytest.mark.parametrize(
    ("to", "words"), [("reception", "sip:user@host"), ("", "to"), ("sip:a b@c", "address")]
)
async def test_an_address_that_cannot_be_called(line: Line, to: str, words: str) -> None:
    async with httpx2.AsyncClient(base_url=line.running.url) as client:
        answer = await client.post("/api/calls", json={"to": to})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "VA504")
    assert words in error["message"]


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [(486, "Busy Here", "busy"), (404, "Not Found", "404 Not Found"), (603, "Decline", "603")],
)
async def test_someone_who_does_not_answer(
    line: Line, status: int, reason: str, words: str
) -> None:
    async with peer() as phone, httpx2.AsyncClient(base_url=line.running.url) as client:
        asking = asyncio.create_task(client.post("/api/calls", json={"to": phone.uri}))
        incoming = await asyncio.wait_for(asyncio.shield(phone.incoming), 10.0)
        incoming.reject(status, reason)
        answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "VA505")
    assert words in answer.json()["error"]["message"]
    assert line.stack.calls[0].ended is None, "the conversation never began"


async def test_a_dead_worker_ends_its_calls_and_another_takes_over(line: Line) -> None:
    async with peer() as phone:
        await phone.call(line.uri)
        call = line.stack.calls[0]
        (pid,) = line.telephone.pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: call.ended is not None, "the end")
        assert call.ended is EndReason.TRANSPORT_LOST
    await line.telephone.ready()
    async with peer() as phone:
        outgoing = await phone.call(line.uri)
        await phone.speak(tone_8k(0.3))
        assert received(line.stack.calls[1])
        outgoing.hangup(phone.uac)
