"""A caller over WebRTC in the test's own loop: aiortc, our codec, no jitter buffer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from fractions import Fraction
from typing import Any

import av
import httpx
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from gateway.media.opus import Decoder, Encoder
from gateway.webrtc_leg import JITTER_ATTRIBUTE
from tests.support.fake_call import tone
from tests.support.live_server import Running
from voice_agent.types import SILENT_OUT


class Microphone(MediaStreamTrack):
    """Opus packets at real-time pace: a tone while `loud`, else silence."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.loud = False
        self._encoder = Encoder()
        self._n = 0
        self._due_s: float | None = None

    async def recv(self) -> av.Packet:
        if self.readyState != "live":
            raise MediaStreamError
        now = asyncio.get_running_loop().time()
        self._due_s = now if self._due_s is None else self._due_s + 0.02
        await asyncio.sleep(max(0.0, self._due_s - now))
        pcm = tone(480, 300.0, self._n * 480) if self.loud else SILENT_OUT
        packet = av.Packet(self._encoder.encode(pcm))
        packet.pts = self._n * 960
        packet.time_base = Fraction(1, 48_000)
        self._n += 1
        return packet


class Sink:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def add(self, packet: Any) -> tuple[bool, None]:
        self.payloads.append(packet.payload)
        return False, None


class Peer:
    def __init__(self, network: RTCConfiguration | None = None, key: str = "") -> None:
        """network: by which servers and ways it connects; default: directly only."""
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self.pc = RTCPeerConnection(network or RTCConfiguration(iceServers=[]))
        self.microphone = Microphone()
        self.sink = Sink()
        self.events: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self.answer = ""

    async def connect(
        self, server: Running, path: str = "/rtc/offer", **body: Any
    ) -> httpx.Response:
        self.channel = self.pc.createDataChannel("events")
        self.channel.on("message", self._on_message)
        self.pc.on("track", self._on_track)
        self.pc.addTrack(self.microphone)
        await self.pc.setLocalDescription(await self.pc.createOffer())
        async with httpx.AsyncClient(headers=self._headers) as client:
            response = await client.post(
                f"{server.url}{path}",
                json={"type": "offer", "sdp": self.pc.localDescription.sdp, **body},
            )
        if response.status_code == 200:
            self.answer = response.json()["sdp"]
            await self.pc.setRemoteDescription(RTCSessionDescription(self.answer, "answer"))
        return response

    def _on_track(self, track: MediaStreamTrack) -> None:
        for receiver in self.pc.getReceivers():
            setattr(receiver, JITTER_ATTRIBUTE, self.sink)

    def _on_message(self, message: str) -> None:
        self.events.append(json.loads(message))
        self._news.set()

    async def until(self, type_: str, n: int = 1, **fields: Any) -> dict[str, Any]:
        """The nth event of a type whose fields are as given."""
        want = {"type": type_, **fields}
        async with asyncio.timeout(15):
            while True:
                found = [e for e in self.events if want.items() <= e.items()]
                if len(found) >= n:
                    return found[n - 1]
                self._news.clear()
                await self._news.wait()

    def heard(self) -> np.ndarray:
        decoder = Decoder()
        return np.concatenate([decoder.decode(p) for p in self.sink.payloads])

    async def close(self) -> None:
        self.microphone.stop()
        await self.pc.close()


@contextlib.asynccontextmanager
async def peer(network: RTCConfiguration | None = None, key: str = "") -> AsyncIterator[Peer]:
    p = Peer(network, key)
    try:
        yield p
    finally:
        await p.close()
