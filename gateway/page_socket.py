"""The page's call where WebRTC can't connect: the WebSocket `/rtc/socket?agent=NAME`.

Texts are those of the data channel. Sound is binary, 16-bit little-endian PCM, mono: the caller's
at 16 kHz in chunks of any length, ours at 24 kHz in frames of 20 ms. What the page still holds of
it when a reply is cut (`done`, interrupted or cancelled) it throws away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from voice_agent.errors import CapacityError, UsageError, VoiceAgentError
from voice_agent.events import CallFault, EndReason, Event, ReplyDone, ReplyStatus
from voice_agent.types import FRAME_MS, Frame

from .call_port import CallPort
from .gateway import Gateway, LiveCall
from .media.echo import EchoGuard
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
from .rtc_side import PageSide

log = logging.getLogger(__name__)

PATH = "/rtc/socket"
SUBPROTOCOL = "voice-agent"
"""Offered by the page beside its token, as a browser wants one of them taken."""
MAX_MESSAGE = 64 << 10  # bytes: two seconds of sound
SOUND = "sound"
_CLOSING = {
    EndReason.SERVER_DRAINING: (CLOSE_GOING_AWAY, "the server is shutting down"),
    EndReason.SERVER_ERROR: (CLOSE_ERROR, "server error"),
    EndReason.BAD_INPUT: (CLOSE_TOO_BIG, f"messages are limited to {MAX_MESSAGE} bytes"),
}


class PageSound:
    """Owns the sound of one call between the process's clock and its socket."""

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

    def on_event(self, event: Event) -> None:
        """Before the page is told: of a reply that was cut, nothing more is sent."""
        cut = (ReplyStatus.INTERRUPTED, ReplyStatus.CANCELLED)
        if isinstance(event, ReplyDone) and event.status in cut and not event.reply.aside:
            self._ahead = 0
            self._outbox.drop(SOUND)
            if self._guard is not None:
                self._guard.cut()


class PageSocket:
    """Owns one accepted socket until the call is over."""

    def __init__(
        self, gateway: Gateway, websocket: WebSocket, live: LiveCall, agent: str | None
    ) -> None:
        self._gateway = gateway
        self._websocket = websocket
        self._live = live
        self._outbox = Outbox()
        lead_ms = gateway.config.websocket_lead_ms
        self._sound = PageSound(self._outbox, lead_ms, gateway.count_frame)
        self._side = PageSide(gateway, agent, lead_ms, self._sound.on_event)
        self._left = self._gone = False

    async def run(self) -> tuple[int, str]:
        """The whole call; returns how to close the socket. Raises UsageError VA115 (agent)."""
        live, gateway = self._live, self._gateway
        call = live.call = self._side.begin(self._outbox.put, self._leave)
        self._sound.attach(call, gateway.echo_guard(gateway.config.echo.page, live))
        slowly = False
        async with asyncio.TaskGroup() as group:
            talk = group.create_task(self._talk(call))
            read = group.create_task(self._read())
            write = group.create_task(self._write())
            slow = group.create_task(self._outbox.full.wait())
            leave = gateway.pacer.join(self._sound.tick, self._on_fault)
            jobs = {talk, read, write, slow}
            try:
                await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                if talk.done():
                    live.reason = talk.result()
                else:
                    slowly = slow.done()
                    if slowly:
                        gateway.metrics.slow_clients.inc()
                        live.reason = EndReason.TRANSPORT_LOST
                    call.hang_up(live.reason)
                    await talk
                if not (slowly or self._gone):
                    flush = group.create_task(self._outbox.flushed())
                    jobs.add(flush)
                    done = asyncio.FIRST_COMPLETED
                    await asyncio.wait({flush, write}, timeout=FLUSH_S, return_when=done)
            finally:
                leave()
                for task in jobs:
                    task.cancel()
        if slowly:
            return CLOSE_POLICY, "the client reads too slowly"
        return _CLOSING.get(live.reason, (CLOSE_NORMAL, live.reason.value))

    def _leave(self) -> None:
        self._left = True

    def _on_fault(self, fault: Exception) -> None:
        self._live.hang_up(EndReason.SERVER_ERROR)

    async def _talk(self, call: CallPort) -> EndReason:
        try:
            return await call.run()
        except Exception:
            log.exception("the call failed")
            return EndReason.SERVER_ERROR

    async def _read(self) -> None:
        live = self._live
        live.reason = EndReason.CALLER_HUNG_UP
        while not self._left:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._gone = True
                if message.get("code") == CLOSE_TOO_BIG:
                    live.reason = EndReason.BAD_INPUT
                elif message.get("code") == 1006:
                    live.reason = EndReason.TRANSPORT_LOST
                return
            data: str | bytes = message.get("bytes") or message.get("text") or b""
            if len(data) > MAX_MESSAGE:
                live.reason = EndReason.BAD_INPUT
                return
            if isinstance(data, str):
                self._side.receive(data)
            elif data:
                self._hear(data)

    def _hear(self, data: bytes) -> None:
        try:
            self._sound.receive(data)
        except ProtocolError as error:
            self._gateway.metrics.protocol_errors.labels(error.code).inc()
            self._side.on_event(CallFault(error.code, error.message))

    async def _write(self) -> None:
        try:
            await self._outbox.send_all(self._websocket)
        except (WebSocketDisconnect, RuntimeError, OSError):
            self._gone = True
            self._live.reason = EndReason.TRANSPORT_LOST


async def page_endpoint(websocket: WebSocket) -> None:
    """Accept, admit, talk, close; every path ends in a closed socket and a freed line."""
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    gateway: Gateway = websocket.app.state.gateway
    grant = websocket.scope["grant"]
    try:
        agent = grant.agent_for(websocket.query_params.get("agent") or None)
        with gateway.admit("websocket") as live:
            live.grant = grant
            code, reason = await PageSocket(gateway, websocket, live, agent).run()
    except CapacityError as error:
        code, reason = CLOSE_TRY_LATER, str(error.args[0])
    except UsageError as error:
        code, reason = CLOSE_POLICY, str(error.args[0])
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
