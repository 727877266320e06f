"""A call over the OpenAI Realtime protocol on a WebSocket, 24 kHz PCM."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any

import numpy as np
import websockets

from .clip import Pcm
from .ear import Ear
from .line import LineError, Refused

OPEN_WITHIN_S = 20.0
_TRY_LATER = 1013
_OVERLOADED = "server_overloaded"


class RealtimeLine:
    def __init__(self, url: str, key: str = "", instructions: str | None = None) -> None:
        """url: ws(s)://…/v1/realtime?model=…; instructions: of this session, set when it opens."""
        self.lost = ""
        self.errors: list[str] = []
        self._url = url
        self._key = key
        self._instructions = instructions
        self._ws: websockets.ClientConnection | None = None
        self._ear: Ear = Ear()
        self._reader: asyncio.Task[None] | None = None

    async def open(self, ear: Ear, hold_s: float) -> None:
        self._ear = ear
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                self._ws = await websockets.connect(
                    self._url, compression=None, max_size=None, additional_headers=headers
                )
                await self._hello(self._ws)
        except websockets.InvalidStatus as error:
            status = error.response.status_code
            if status in (429, 503):
                raise Refused(f"HTTP {status}") from error
            raise LineError(f"{self._url} answered HTTP {status}") from error
        except websockets.ConnectionClosed as error:
            code = error.rcvd.code if error.rcvd else None
            if code == _TRY_LATER:
                raise Refused(error.rcvd.reason if error.rcvd else "") from error
            raise LineError(f"{self._url} closed the call: {error}") from error
        except (OSError, TimeoutError, websockets.WebSocketException) as error:
            why = str(error) or "no answer in time"
            raise LineError(f"{self._url} cannot be reached: {why}") from error
        self._reader = asyncio.ensure_future(self._read(self._ws))

    async def _hello(self, ws: websockets.ClientConnection) -> None:
        """The session as it is to be. Raises Refused, LineError."""
        await self._expect(ws, "session.created")
        if self._instructions is not None:
            session = {"type": "realtime", "instructions": self._instructions}
            await ws.send(json.dumps({"type": "session.update", "session": session}))
            await self._expect(ws, "session.updated")

    async def _expect(self, ws: websockets.ClientConnection, kind: str) -> None:
        while True:
            event = json.loads(await ws.recv())
            if event["type"] == "error":
                error = event["error"]
                text = str(error.get("message"))
                raise Refused(text) if error.get("type") == _OVERLOADED else LineError(text)
            if event["type"] == kind:
                return
            self._on_event(event)

    async def send(self, frame: Pcm) -> None:
        if self._ws is None or self.lost:
            return
        audio = base64.b64encode(frame.astype("<i2", copy=False).tobytes()).decode()
        with contextlib.suppress(websockets.ConnectionClosed):  # the reader tells why
            await self._ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._ws is not None:
            with contextlib.suppress(OSError, websockets.WebSocketException):
                await self._ws.close()

    async def _read(self, ws: websockets.ClientConnection) -> None:
        try:
            async for message in ws:
                self._on_event(json.loads(message))
            self.lost = "closed by the server"
        except websockets.ConnectionClosed as error:
            self.lost = str(error)

    def _on_event(self, event: dict[str, Any]) -> None:
        now_s = asyncio.get_running_loop().time()
        match event["type"]:
            case "response.created":
                self._ear.own(event["response"]["id"])
            case "response.output_audio.delta":
                pcm = np.frombuffer(base64.b64decode(event["delta"]), "<i2").astype(np.int16)
                self._ear.play(pcm, now_s, event["response_id"])
            case "input_audio_buffer.speech_started":
                self._ear.cut(now_s)
            case "error":
                self.errors.append(str(event["error"].get("message")))
