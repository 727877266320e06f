"""Callers of the benchmark, as cheap as they can be: packets made before, nothing decoded."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import httpx2
import websockets
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from gateway.webrtc_leg import JITTER_ATTRIBUTE
from voice_agent.types import OUT_FRAME, Pcm16

TIME_BASE = Fraction(1, 48_000)


class _Speaker(MediaStreamTrack):  # type: ignore[misc]
    kind = "audio"

    def __init__(self, packets: Sequence[bytes]) -> None:
        super().__init__()
        self._packets = packets
        self._n = 0
        self._start_s: float | None = None

    async def recv(self) -> av.Packet:
        if self.readyState != "live":
            raise MediaStreamError
        now = asyncio.get_running_loop().time()
        self._start_s = now if self._start_s is None else self._start_s
        await asyncio.sleep(max(0.0, self._start_s + self._n * 0.02 - now))
        packet = av.Packet(self._packets[self._n % len(self._packets)])
        packet.pts, packet.time_base = self._n * 960, TIME_BASE
        self._n += 1
        return packet


class _Counter:
    def __init__(self) -> None:
        self.n = 0

    def add(self, packet: Any) -> tuple[bool, None]:
        self.n += 1
        return False, None


class RtcCaller:
    """One call over WebRTC. `got`: packets received."""

    def __init__(self, url: str, packets: Sequence[bytes]) -> None:
        self._url = url
        self._packets = packets
        self._counter = _Counter()

    @property
    def got(self) -> int:
        return self._counter.n

    async def run(self, connected: asyncio.Semaphore, over: asyncio.Event) -> None:
        """connected is released once it is; ends after `over`."""
        pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        up = asyncio.Event()

        def on_track(track: MediaStreamTrack) -> None:
            for receiver in pc.getReceivers():
                setattr(receiver, JITTER_ATTRIBUTE, self._counter)

        def on_state() -> None:
            if pc.connectionState == "connected":
                up.set()

        pc.on("track", on_track)
        pc.on("connectionstatechange", on_state)
        pc.createDataChannel("events")
        pc.addTrack(_Speaker(self._packets))
        try:
            await pc.setLocalDescription(await pc.createOffer())
            offer = {"type": "offer", "sdp": pc.localDescription.sdp}
            async with httpx2.AsyncClient(timeout=30.0) as client:
                answer = (await client.post(f"{self._url}/rtc/offer", json=offer)).json()
            await pc.setRemoteDescription(RTCSessionDescription(answer["sdp"], "answer"))
            async with asyncio.timeout(20):
                await up.wait()
            connected.release()
            await over.wait()
        finally:
            await pc.close()


class SocketCaller:
    """One call over the Realtime WebSocket, 24 kHz PCM. `got`: 20 ms of sound received."""

    def __init__(self, url: str, speech: Pcm16) -> None:
        self._url = url.replace("http", "ws", 1) + "/v1/realtime?model=bench"
        self._messages = [
            json.dumps(
                {
                    "type": "input_audio_buffer.append",
                    "audio": base64.b64encode(speech[i : i + OUT_FRAME].tobytes()).decode(),
                }
            )
            for i in range(0, len(speech), OUT_FRAME)
        ]
        self._bytes = 0

    @property
    def got(self) -> int:
        return self._bytes * 3 // 4 // (2 * OUT_FRAME)

    async def run(self, connected: asyncio.Semaphore, over: asyncio.Event) -> None:
        async with websockets.connect(self._url, compression=None) as socket:
            connected.release()
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read(socket))
                start = asyncio.get_running_loop().time()
                n = 0
                while not over.is_set():
                    await socket.send(self._messages[n % len(self._messages)])
                    n += 1
                    await asyncio.sleep(
                        max(0.0, start + n * 0.02 - asyncio.get_running_loop().time())
                    )
                reading.cancel()

    async def _read(self, socket: websockets.ClientConnection) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            async for message in socket:
                data = json.loads(message)
                if data["type"] == "response.output_audio.delta":
                    self._bytes += len(data["delta"])
