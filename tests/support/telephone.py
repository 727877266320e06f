"""A telephone of another make (aiosipua, aiortp) against the running server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable

import aiortp
import numpy as np
from aiosipua import IncomingCall, OutgoingCall, SipUAC, SipUAS, build_sdp
from aiosipua.refer import notify_refer
from aiosipua.transport import UdpSipTransport

from voice_agent.types import Pcm16

HOST = "127.0.0.1"
GIVE_UP_S = 30.0  # never asserted


def free_udp(n: int = 1, *, even: bool = True) -> int:
    """The first of n consecutive free UDP ports; TCP is free there as well."""
    while True:
        with contextlib.ExitStack() as stack:
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            probe.bind((HOST, 0))
            first = int(probe.getsockname()[1])
            if (even and first % 2) or first + n > 65_000:
                continue
            try:
                for port in range(first, first + n):
                    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                        if (port, kind) != (first, socket.SOCK_DGRAM):
                            stack.enter_context(socket.socket(socket.AF_INET, kind)).bind(
                                (HOST, port)
                            )
            except OSError:
                continue
            return first


class Peer:
    """One telephone: it calls, or answers whatever comes in."""

    def __init__(self, transport: UdpSipTransport, port: int) -> None:
        self.port = port
        self.heard: list[Pcm16] = []
        self.keys: list[str] = []
        self.hung_up = asyncio.Event()
        self.referred: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.incoming: asyncio.Future[IncomingCall] = asyncio.get_running_loop().create_future()
        self.uac = SipUAC(transport)
        self.uas = SipUAS(transport, uac=self.uac)
        self.uas.on_bye = lambda call, request: self.hung_up.set()
        self.uas.on_reinvite = self._on_reinvite
        self.uas.on_refer = self._on_refer
        self.uas.on_invite = self.incoming.set_result
        self.rtp: aiortp.RTPSession | None = None
        self._rtp_port = free_udp(2)
        self._probed = asyncio.Event()

    @property
    def uri(self) -> str:
        return f"sip:peer@{HOST}:{self.port}"

    async def call(self, uri: str) -> OutgoingCall:
        """Raises RuntimeError with the status if the other side says no."""
        host, port = re.split(r"[@;]", uri)[1].split(":")
        offer = build_sdp(HOST, self._rtp_port, 0, "PCMU", dtmf_payload_type=101)
        call = self.uac.send_invite(self.uri, uri, (host, int(port)), sdp_offer=offer)
        await call.wait_answered(GIVE_UP_S)
        assert call.sdp_answer is not None
        await self._media(call.sdp_answer.rtp_address)
        # the server's own re-INVITE: a request of ours beside it would be answered 491
        await asyncio.wait_for(self._probed.wait(), GIVE_UP_S)
        await asyncio.sleep(0.1)
        return call

    async def answer(self) -> IncomingCall:
        """The next call that comes in."""
        call = await asyncio.wait_for(asyncio.shield(self.incoming), GIVE_UP_S)
        assert call.sdp_offer is not None
        call.ringing()
        call.accept(build_sdp(HOST, self._rtp_port, 0, "PCMU", dtmf_payload_type=101))
        await self._media(call.sdp_offer.rtp_address)
        return call

    async def _media(self, remote: tuple[str, int] | None) -> None:
        assert remote is not None
        self.rtp = await aiortp.RTPSession.create(
            (HOST, self._rtp_port), remote, 0, jitter_prefetch=0
        )
        self.rtp.on_audio = lambda pcm, at: self.heard.append(np.frombuffer(pcm, np.int16))
        self.rtp.on_dtmf = lambda key, duration: self.keys.append(key)

    def _on_refer(self, call: IncomingCall, target: str) -> None:
        self._referring = call
        self.referred.set_result(target)

    def notify(self, status: int) -> None:
        """How the transfer that we were asked for went."""
        notify_refer(self._referring, status)

    def _on_reinvite(self, call: IncomingCall) -> None:
        """baresip sends one right after it has answered."""
        self._probed.set()
        call.accept(build_sdp(HOST, self._rtp_port, 0, "PCMU", dtmf_payload_type=101))

    def hold(self, call: OutgoingCall, on: bool) -> None:
        offer = build_sdp(HOST, self._rtp_port, 0, "PCMU", dtmf_payload_type=101)
        media = offer.media[0]
        media.attributes.pop("sendrecv", None)
        media.attributes["sendonly" if on else "sendrecv"] = []
        self.uac.send_reinvite(call.dialog, offer, call.remote_addr)

    async def speak(self, pcm: Pcm16) -> None:
        """pcm: int16 [n] at 8 kHz, in real time."""
        assert self.rtp is not None
        loop = asyncio.get_running_loop()
        start = loop.time()
        for k in range(len(pcm) // 160):
            await asyncio.sleep(max(0.0, start + k * 0.02 - loop.time()))
            self.rtp.send_audio_pcm_auto(pcm[k * 160 : (k + 1) * 160].tobytes())

    def loudness(self, last: int = 25) -> float:
        """Mean level of the newest frames."""
        if not self.heard:
            return 0.0
        return float(np.abs(np.concatenate(self.heard[-last:]).astype(float)).mean())


@contextlib.asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    port = free_udp()
    transport = UdpSipTransport(local_addr=(HOST, port))
    made = Peer(transport, port)
    await made.uas.start()
    try:
        yield made
    finally:
        if made.rtp is not None:
            await made.rtp.close()
        await made.uas.stop()


async def until(happened: Callable[[], object], what: str) -> None:
    """Wait for a condition; gives up, naming it, long after it should have come."""
    try:
        async with asyncio.timeout(GIVE_UP_S):
            while not happened():  # noqa: ASYNC110 - of another process, seen from outside
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never came: {what}") from None
