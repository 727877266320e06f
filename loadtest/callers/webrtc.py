"""A call over WebRTC: aiortc's transport, Opus both ways, and a receiver that hears each packet.

aiortc's own jitter buffer is replaced by one that keeps arrival times (`RtpEar`), so that what is
measured is the server's pacing and not this client's decoding thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from fractions import Fraction
from typing import Any

import av
import httpx2
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from .clip import FRAME, RATE, Pcm
from .ear import Ear
from .line import LineError, Refused
from .network import Network, Path
from .rtp import RtpEar

JITTER_BUFFER = "_RTCRtpReceiver__jitter_buffer"
_CLOCK = 48_000
_TIME_BASE = Fraction(1, _CLOCK)
_CONNECT_S = 20.0


class _Microphone(MediaStreamTrack):  # type: ignore[misc]
    """What the caller sends, encoded when it is due; paced by whoever calls `push`."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        codec: Any = av.CodecContext.create("libopus", "w")
        codec.sample_rate, codec.layout, codec.format = RATE, "mono", "s16"
        codec.bit_rate, codec.options = 24_000, {"application": "voip", "frame_duration": "20"}
        self._codec = codec
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._n = self._pts = 0

    def push(self, frame: Pcm) -> None:
        audio = av.AudioFrame.from_ndarray(frame.reshape(1, -1), format="s16", layout="mono")
        audio.sample_rate, audio.pts, audio.time_base = RATE, self._pts, Fraction(1, RATE)
        self._pts += FRAME
        for packet in self._codec.encode(audio):
            self._queue.put_nowait(bytes(packet))

    async def recv(self) -> av.Packet:
        if self.readyState != "live":
            raise MediaStreamError
        packet = av.Packet(await self._queue.get())
        packet.pts, packet.time_base = self._n * 960, _TIME_BASE
        self._n += 1
        return packet


class _Receiver:
    """Stands where aiortc's jitter buffer was."""

    def __init__(self, ear: Ear, path: Path | None) -> None:
        self._rtp = RtpEar(ear, _CLOCK)
        self._path = path
        codec: Any = av.CodecContext.create("libopus", "r")
        codec.sample_rate, codec.layout = _CLOCK, "mono"
        self._codec = codec
        self._halve = av.AudioResampler(format="s16", layout="mono", rate=RATE)

    def add(self, packet: Any) -> tuple[bool, None]:
        loop = asyncio.get_running_loop()
        got = packet.sequence_number, packet.timestamp, packet.payload
        if self._path is None:
            self._take(*got)
        else:
            loop.call_at(self._path.arrival(loop.time()), self._take, *got)
        return False, None

    def _take(self, sequence: int, timestamp: int, payload: bytes) -> None:
        parts = [
            piece.to_ndarray().reshape(-1)
            for frame in self._codec.decode(av.Packet(payload))
            for piece in self._halve.resample(frame)
        ]
        pcm = np.concatenate(parts).astype(np.int16) if parts else np.zeros(FRAME, np.int16)
        self._rtp.add(sequence, timestamp, pcm, asyncio.get_running_loop().time())


class WebRtcLine:
    def __init__(
        self,
        url: str,
        key: str = "",
        instructions: str | None = None,
        network: Network | None = None,
        seed: int = 0,
    ) -> None:
        """url: http(s)://…, the server's; the call is made at /v1/realtime/calls."""
        self.lost = ""
        self._url = url.rstrip("/")
        self._key = key
        self._instructions = instructions
        self._up = Path(network, seed, stream=True) if network else None
        self._down = Path(network, seed + 1, stream=False) if network else None
        self._pc: RTCPeerConnection | None = None
        self._microphone: _Microphone | None = None

    async def open(self, ear: Ear, hold_s: float) -> None:
        pc = self._pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._microphone = _Microphone()
        up = asyncio.Event()
        receiver = _Receiver(ear, self._down)

        def on_track(track: MediaStreamTrack) -> None:
            for one in pc.getReceivers():
                setattr(one, JITTER_BUFFER, receiver)

        def on_state() -> None:
            if pc.connectionState == "connected":
                up.set()
            elif pc.connectionState in ("failed", "closed"):
                self.lost = self.lost or f"connection {pc.connectionState}"

        pc.on("track", on_track)
        pc.on("connectionstatechange", on_state)
        pc.createDataChannel("oai-events")
        pc.addTrack(self._microphone)
        await pc.setLocalDescription(await pc.createOffer())
        answer = await self._ask(pc.localDescription.sdp)
        await pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        try:
            async with asyncio.timeout(_CONNECT_S):
                await up.wait()
        except TimeoutError:
            raise LineError(f"{self._url}: no media path within {_CONNECT_S:.0f} s") from None

    async def _ask(self, sdp: str) -> str:
        """The answer. Raises Refused, LineError."""
        session: dict[str, Any] = {"type": "realtime"}
        if self._instructions is not None:
            session["instructions"] = self._instructions
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        fields = {"sdp": (None, sdp), "session": (None, json.dumps(session))}
        try:
            async with httpx2.AsyncClient(timeout=_CONNECT_S) as client:
                reply = await client.post(
                    f"{self._url}/v1/realtime/calls", files=fields, headers=headers
                )
        except httpx2.HTTPError as error:
            raise LineError(f"{self._url} cannot be reached: {error}") from error
        if reply.status_code in (429, 503):
            raise Refused(f"HTTP {reply.status_code}")
        if reply.status_code not in (200, 201):
            raise LineError(f"{self._url} answered HTTP {reply.status_code}: {reply.text[:200]}")
        return str(reply.text)

    async def send(self, frame: Pcm) -> None:
        if self._microphone is None or self.lost:
            return
        if self._up is None:
            self._microphone.push(frame)
            return
        loop = asyncio.get_running_loop()
        loop.call_at(self._up.arrival(loop.time()), self._microphone.push, frame)

    async def close(self) -> None:
        if self._microphone is not None:
            self._microphone.stop()
        if self._pc is not None:
            with contextlib.suppress(Exception):
                await self._pc.close()
