"""The other end of a media stream: a telephone platform that plays what it gets at real time.

It buffers sound, returns a mark when everything before it has been played, and on `clear` empties
the buffer and returns its marks at once, as Twilio's documentation says.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections import deque
from typing import Any

import numpy as np
import websockets
from websockets.exceptions import ConnectionClosed

from gateway.media import g711
from voice_agent.types import Pcm16

RATE = 8000
FRAME = 160
STREAM, CALL = "MZ18ad3ab5a668481ce02b83e7395059f0", "CA77e8ac38bd8f8e2a1a4c2d4f6b3f1a20"


def connected() -> dict[str, Any]:
    return {"event": "connected", "protocol": "Call", "version": "1.0.0"}


def start(**parameters: str) -> dict[str, Any]:
    return {
        "event": "start",
        "sequenceNumber": "1",
        "start": {
            "accountSid": "ACb7a3f0b2d3c84d4f9b0a4f1c2d3e4f50",
            "streamSid": STREAM,
            "callSid": CALL,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": parameters,
        },
        "streamSid": STREAM,
    }


def media(payload: bytes, n: int = 1, track: str = "inbound") -> dict[str, Any]:
    return {
        "event": "media",
        "sequenceNumber": str(n + 1),
        "media": {
            "track": track,
            "chunk": str(n),
            "timestamp": str(20 * n),
            "payload": base64.b64encode(payload).decode(),
        },
        "streamSid": STREAM,
    }


def dtmf(digit: str) -> dict[str, Any]:
    body = {"track": "inbound_track", "digit": digit}
    return {"event": "dtmf", "streamSid": STREAM, "sequenceNumber": "5", "dtmf": body}


def mark(name: str) -> dict[str, Any]:
    return {"event": "mark", "sequenceNumber": "4", "streamSid": STREAM, "mark": {"name": name}}


def stop() -> dict[str, Any]:
    body = {"accountSid": "ACb7a3f0b2d3c84d4f9b0a4f1c2d3e4f50", "callSid": CALL}
    return {"event": "stop", "sequenceNumber": "9", "stop": body, "streamSid": STREAM}


def _room(n: int) -> Pcm16:
    return np.random.default_rng(n).integers(-4, 5, FRAME).astype(np.int16)


class Platform:
    """One call. played: what the caller has heard, without pauses; events: all that came."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []
        self.played: list[Pcm16] = []
        self.idle = 0
        """20 ms without sound since the last of it was played."""
        self.clears = 0
        self.thrown_away = 0  # samples that `clear` emptied
        self._said: deque[Pcm16] = deque()
        self._buffer: deque[bytes | str] = deque()
        self._news = asyncio.Event()

    async def begin(self, **parameters: str) -> None:
        await self.send(connected())
        await self.send(start(**parameters))

    async def send(self, message: dict[str, Any]) -> None:
        await self.socket.send(json.dumps(message))

    def say(self, pcm_8k: Pcm16) -> None:
        pcm = np.pad(pcm_8k, (0, -len(pcm_8k) % FRAME))
        self._said += list(pcm.reshape(-1, FRAME))

    async def listen(self) -> None:
        """Until the server closes."""
        async for text in self.socket:
            event = json.loads(text)
            self.events.append(event)
            match event["event"]:
                case "media":
                    data = base64.b64decode(event["media"]["payload"])
                    self._buffer += [data[i : i + 1] for i in range(len(data))]
                case "mark":
                    self._buffer.append(event["mark"]["name"])
                case "clear":
                    await self._clear()
            self._news.set()

    async def _clear(self) -> None:
        self.clears += 1
        marks = [entry for entry in self._buffer if isinstance(entry, str)]
        self.thrown_away += len(self._buffer) - len(marks)
        self._buffer.clear()
        with contextlib.suppress(ConnectionClosed):  # the call may be over by now
            for name in marks:
                await self.send(mark(name))

    async def clock(self) -> None:
        """20 ms of the line, for ever: the microphone in, the loudspeaker out."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for n in itertools.count(1):
            await asyncio.sleep(max(0.0, begin + 0.02 * n - loop.time()))
            said = self._said.popleft() if self._said else _room(n)
            await self.send(media(g711.encode_ulaw(said), n))
            await self._play()

    async def _play(self) -> None:
        data = b""
        while self._buffer and len(data) < FRAME:
            entry = self._buffer.popleft()
            if isinstance(entry, str):
                await self.send(mark(entry))
            else:
                data += entry
        while self._buffer and isinstance(self._buffer[0], str):
            await self.send(mark(str(self._buffer.popleft())))
        self.idle = 0 if data else self.idle + 1
        if data:
            self.played.append(g711.decode_ulaw(data))
        self._news.set()

    async def until(self, what: Any, give_up_s: float = 30.0) -> None:
        """Until `what()` is true, looked at whenever something came."""
        async with asyncio.timeout(give_up_s):
            while not what():
                self._news.clear()
                await self._news.wait()
