"""The same service with aiortc as it comes: its tracks, its jitter buffer, its codec threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from voice_agent.types import OUT_FRAME, OUT_RATE, Pcm16


class Speech(MediaStreamTrack):  # type: ignore[misc]
    """24 kHz frames at real-time pace, for aiortc to resample and encode."""

    kind = "audio"

    def __init__(self, speech: Pcm16) -> None:
        super().__init__()
        self._speech = speech
        self._at = 0
        self._due_s = 0.0
        self.sent = 0

    async def recv(self) -> av.AudioFrame:
        now = asyncio.get_running_loop().time()
        self._due_s = (self._due_s or now) + 0.02
        await asyncio.sleep(self._due_s - now)
        at = self._at % len(self._speech)
        pcm = np.ascontiguousarray(self._speech[at : at + OUT_FRAME]).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(pcm, format="s16", layout="mono")
        frame.sample_rate = OUT_RATE
        frame.pts = self._at
        frame.time_base = Fraction(1, OUT_RATE)
        self._at += OUT_FRAME
        self.sent += 1
        return frame


def stock_app(speech: Pcm16) -> Starlette:
    """POST /rtc/offer and GET /metrics, as our server has them."""
    connections: list[Any] = []
    tracks: list[Speech] = []
    heard = [0]

    async def listen(track: Any) -> None:
        with contextlib.suppress(MediaStreamError):
            while True:
                await track.recv()
                heard[0] += 1

    async def offer(request: Request) -> Response:
        data = await request.json()
        pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        connections.append(pc)
        pc.on("track", lambda track: request.app.state.group.create_task(listen(track)))
        await pc.setRemoteDescription(RTCSessionDescription(data["sdp"], "offer"))
        tracks.append(Speech(speech))
        pc.addTrack(tracks[-1])
        await pc.setLocalDescription(await pc.createAnswer())
        return JSONResponse({"type": "answer", "sdp": pc.localDescription.sdp})

    async def metrics(request: Request) -> Response:
        played = sum(track.sent for track in tracks)
        return PlainTextResponse(
            f"voice_agent_bench_heard {heard[0]}\nvoice_agent_bench_received {heard[0]}\n"
            f"voice_agent_bench_played {played}\nvoice_agent_bench_underruns 0\n"
        )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            app.state.group = group
            yield
            for pc in connections:
                await pc.close()

    routes = [Route("/rtc/offer", offer, methods=["POST"]), Route("/metrics", metrics)]
    return Starlette(routes=routes, lifespan=lifespan)
