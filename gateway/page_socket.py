"""A line of the page's over a WebSocket, where WebRTC can't connect: `/rtc/socket?agent=NAME`, and
`/rtc/resume?seen=N` for a call whose line was lost.

Texts are those of the data channel. Sound is binary, 16-bit little-endian PCM, mono: the caller's
at 16 kHz in chunks of any length, ours at 24 kHz in frames of 20 ms. What the page still holds of
it when a reply is cut (`done`, interrupted or cancelled), or when the line comes back (`line` with
`gap_ms`), it throws away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from voice_agent.errors import CapacityError, UsageError, VoiceAgentError
from voice_agent.events import EndReason
from voice_agent.player import Player
from voice_agent.types import FRAME_MS, Frame

from .call_port import CallPort
from .gateway import Gateway
from .line_call import LineCall, Return, Way
from .lines import OnFault, OnMessage
from .media.echo import EchoGuard, EchoMode, EchoReport
from .realtime.audio_in import AudioInput
from .realtime.errors import ProtocolError
from .realtime_ws import (
    CLOSE_ERROR,
    CLOSE_GOING_AWAY,
    CLOSE_NORMAL,
    CLOSE_POLICY,
    CLOSE_TOO_BIG,
    CLOSE_TRY_LATER,
    FLUSH_S,
    Outbox,
)
from .resume import find
from .rtc_side import PageSide
from .workers.link import Message

log = logging.getLogger(__name__)

PATH = "/rtc/socket"
SUBPROTOCOL = "voice-agent"
"""Offered by the page beside its token, as a browser wants one of them taken."""
RESUME_SUBPROTOCOL = "voice-agent-resume."
"""Before the credential of a call that was lost: a browser can send no header."""
MAX_MESSAGE = 64 << 10  # bytes: two seconds of sound
SOUND = "sound"
LOST_TICKS = 40  # without sound (800 ms) of a page that sends some all the time
CLOSE_MOVING = 4000
"""Of the page: it will come back over another line."""
CLOSE_GONE = 4410
"""Ours: there is no call to come back to."""
_CLOSING = {
    EndReason.SERVER_DRAINING: (CLOSE_GOING_AWAY, "the server is shutting down"),
    EndReason.SERVER_ERROR: (CLOSE_ERROR, "server error"),
    EndReason.BAD_INPUT: (CLOSE_TOO_BIG, f"messages are limited to {MAX_MESSAGE} bytes"),
}
_LOST_CODES = (1005, 1006, CLOSE_MOVING)
"""The first two: it broke; who hangs up says a code."""


class PageSound:
    """Owns the sound of one line between the process's clock and its socket."""

    def __init__(
        self,
        outbox: Outbox,
        lead_ms: int,
        on_frame: Callable[[Frame], None] = lambda frame: None,
    ) -> None:
        self._outbox = outbox
        self._lead_frames = lead_ms // FRAME_MS
        self._on_frame = on_frame
        self._input = AudioInput(self._hear)
        self._ahead = 0  # frames that the page has and has not played yet
        self._call: CallPort | None = None
        self._guard: EchoGuard | None = None

    def attach(self, call: CallPort, guard: EchoGuard | None) -> None:
        """Before anything else. guard: the call's defence against our own echo."""
        self._call, self._guard = call, guard
        call.play_on(Player(self.cut))

    @property
    def call(self) -> CallPort:
        assert self._call is not None
        return self._call

    def receive(self, data: bytes) -> None:
        """The caller's sound. Raises ProtocolError; it is then not heard at all."""
        if len(data) % 2:
            raise ProtocolError("invalid_audio", f"{len(data)} bytes are not whole 16-bit samples.")
        self._input.feed(np.frombuffer(data, "<i2").astype(np.int16, copy=False))

    def _hear(self, frame: Frame) -> None:
        self._on_frame(frame)
        self.call.hear(frame if self._guard is None else self._guard.heard(frame))

    def tick(self) -> None:
        """20 ms: hear what waits, then send our voice, up to `lead_ms` ahead of its playing."""
        self._input.tick()
        self._ahead = max(0, self._ahead - 1)
        while True:
            frame = self.call.tick()
            if frame.audible:
                self._ahead += 1
                self._outbox.put(frame.pcm.astype("<i2", copy=False).tobytes(), SOUND)
                if self._guard is not None:
                    self._guard.sent(frame.pcm)
            if not frame.audible or self._ahead > self._lead_frames:
                break
        if self._guard is not None:
            self._guard.tick()

    def cut(self) -> None:
        """Of the reply being played nothing more is sent."""
        self._ahead = 0
        self._outbox.drop(SOUND)
        if self._guard is not None:
            self._guard.cut()


class SocketLine:
    """One accepted socket as a call sees it (`gateway.lines.MediaLine`)."""

    def __init__(self, gateway: Gateway, websocket: WebSocket) -> None:
        self._gateway = gateway
        self._websocket = websocket
        self._outbox = Outbox()
        self._sound = PageSound(self._outbox, gateway.config.websocket_lead_ms, gateway.count_frame)
        self._on_message: OnMessage = lambda message: None
        self._leave: Callable[[], None] = lambda: None
        self._guard: EchoGuard | None = None
        self._resumes = self._connected = self._any = False
        self._dry_ticks = 0
        self._attached = asyncio.Event()
        self._closing = asyncio.Event()
        self._left = False  # it was told
        self._gone = False  # the page, or its connection
        self.slow = False

    def way(self, *, first: bool) -> Way:
        """first: the call begins with it; else once the page, having the answer, has sent
        something."""
        config = self._gateway.config
        offer = {"echo": config.echo.page.value, "first": first}
        return Way(self._made, offer, config.websocket_lead_ms, tail_s=0.0)

    def _made(self, on_message: OnMessage) -> SocketLine:
        self._on_message = on_message
        return self

    # ------------------------------------------------------------ as the call sees it

    async def open(self, offer: Message) -> Message:
        self._resumes = bool(offer["resumes"])
        mode = EchoMode(offer["echo"])
        if mode is not EchoMode.OFF:
            self._guard = EchoGuard(mode, self._echo)
            self._echo(self._guard.report)
        if offer["first"]:
            self._connect()
        return {}

    def talk(self, call: CallPort, on_frame: Callable[[Frame], None], on_fault: OnFault) -> None:
        self._sound.attach(call, self._guard)
        self._attached.set()
        self._leave = self._gateway.pacer.join(self._tick, lambda fault: on_fault())

    def tell(self, kind: str, **fields: Any) -> None:
        if kind == "text":
            self._outbox.put(fields["text"])

    async def close(self) -> None:
        self._leave()
        self._closing.set()

    def _told(self, kind: str, **fields: Any) -> None:
        self._on_message({"type": kind, **fields})

    def _leaves(self, why: str) -> None:
        if not self._left and not self._closing.is_set():
            self._left = True
            self._told("gone", why=why)

    def _connect(self) -> None:
        if not self._connected:
            self._connected = True
            self._told("connected")

    def _echo(self, report: EchoReport) -> None:
        self._told("echo", verdict=report.verdict.value, note=str(report))

    # ------------------------------------------------------------ the clock

    def _tick(self) -> None:
        if self._resumes and self._any:
            self._dry_ticks += 1
            if self._dry_ticks == LOST_TICKS:
                self._told("lost", ms=LOST_TICKS * FRAME_MS)
            if self._dry_ticks >= LOST_TICKS:
                return
        self._sound.tick()

    def _arrived(self) -> None:
        """Sound of the caller's."""
        dry, self._dry_ticks, self._any = self._dry_ticks, 0, True
        if dry >= LOST_TICKS:
            self._sound.cut()  # it is said again
            self._told("back")

    # ------------------------------------------------------------ the socket

    async def serve(self) -> None:
        """Until the call has done with it and all is sent, or the page is gone."""
        async with asyncio.TaskGroup() as group:
            read, write = group.create_task(self._read()), group.create_task(self._write())
            slow = group.create_task(self._outbox.full.wait())
            closing = group.create_task(self._closing.wait())
            jobs = {read, write, slow, closing}
            try:
                await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                if slow.done():
                    self.slow = True
                    self._gateway.metrics.slow_clients.inc()
                    self._leaves("slow")
                elif write.done():  # why, is read
                    await asyncio.wait({read}, timeout=FLUSH_S)
                    self._gone = True
                    self._leaves("lost")
                if not self._gone:
                    await asyncio.wait({closing}, timeout=FLUSH_S)
                if not (self._gone or self.slow):
                    jobs.add(flush := group.create_task(self._outbox.flushed()))
                    done = asyncio.FIRST_COMPLETED
                    await asyncio.wait({flush, write}, timeout=FLUSH_S, return_when=done)
            finally:
                self._leaves("fault")
                self._leave()
                for job in jobs:
                    job.cancel()

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._gone = True
                self._leaves(_why(message.get("code")))
                return
            self._connect()
            await self._attached.wait()
            data: str | bytes = message.get("bytes") or message.get("text") or b""
            if len(data) > MAX_MESSAGE:
                self._leaves("bad_input")
                return
            if isinstance(data, str):
                self._told("text", text=data)
            elif data:
                self._hear(data)

    def _hear(self, data: bytes) -> None:
        try:
            self._arrived()
            self._sound.receive(data)
        except ProtocolError as error:
            self._gateway.metrics.protocol_errors.labels(error.code).inc()
            self._told("fault", code=error.code, text=error.message)

    async def _write(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            await self._outbox.send_all(self._websocket)


def _why(code: int | None) -> str:
    if code == CLOSE_TOO_BIG:
        return "bad_input"
    return "lost" if code in _LOST_CODES else "hung_up"


# ---------------------------------------------------------------- routes


async def page_endpoint(websocket: WebSocket) -> None:
    """Accept, admit, talk, close; every path ends in a closed socket, and a line freed or held."""
    grant = websocket.scope["grant"]

    async def begin(gateway: Gateway, line: SocketLine) -> tuple[LineCall, Message]:
        agent = grant.agent_for(websocket.query_params.get("agent") or None)
        side = PageSide(gateway, agent, gateway.config.websocket_lead_ms)
        call = LineCall(gateway, side, agent, transport="websocket", grant=grant)
        websocket.app.state.calls.create_task(call.run(line.way(first=True)))
        return call, await call.answer

    await _serve(websocket, begin)


async def resume_endpoint(websocket: WebSocket) -> None:
    """The same for a page that comes back; only its credential opens it."""
    offered = websocket.scope.get("subprotocols", [])
    token = next((p for p in offered if p.startswith(RESUME_SUBPROTOCOL)), RESUME_SUBPROTOCOL)
    seen = websocket.query_params.get("seen", "")

    async def begin(gateway: Gateway, line: SocketLine) -> tuple[LineCall, Message]:
        call = find(gateway.resumable, token[len(RESUME_SUBPROTOCOL) :])
        back = Return(int(seen) if seen.isdecimal() and len(seen) < 9 else 0)
        return call, await call.resume(line.way(first=False), back)

    await _serve(websocket, begin)


Begin = Callable[[Gateway, SocketLine], Any]


async def _serve(websocket: WebSocket, begin: Begin) -> None:
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    gateway: Gateway = websocket.app.state.gateway
    try:
        line = SocketLine(gateway, websocket)
        call, answer = await begin(gateway, line)
        if "resume" in answer:
            line.tell("text", text=json.dumps({"type": "line", **answer}))
        await line.serve()
        code, reason = _closing(call, line)
    except CapacityError as error:
        code, reason = CLOSE_TRY_LATER, str(error.args[0])
    except UsageError as error:
        code = CLOSE_GONE if error.code == "VA498" else CLOSE_POLICY
        reason = str(error.args[0])
    except VoiceAgentError as error:
        log.warning("a call of the page failed", extra={"code": error.code})
        code, reason = CLOSE_ERROR, str(error.args[0])
    except Exception:
        log.exception("a call of the page failed")
        code, reason = CLOSE_ERROR, "server error"
    # the client may have closed first, or read nothing: then the socket's keep-alive ends it
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError, TimeoutError):
        async with asyncio.timeout(FLUSH_S):
            await websocket.close(code, reason[:120])


def _closing(call: LineCall, line: SocketLine) -> tuple[int, str]:
    """How to close the socket."""
    if line.slow:
        return CLOSE_POLICY, "the client reads too slowly"
    if isinstance(call.error, CapacityError):
        return CLOSE_TRY_LATER, str(call.error.args[0])
    if call.reason is None:
        return CLOSE_NORMAL, "another line carries the call"
    return _CLOSING.get(call.reason, (CLOSE_NORMAL, call.reason.value))
