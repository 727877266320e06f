"""The WebSocket of `/v1/realtime`: one connection is one call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque

from starlette.websockets import WebSocket, WebSocketDisconnect

from voice_agent.errors import CapacityError, VoiceAgentError
from voice_agent.events import EndReason, Event
from voice_agent.types import FRAME_MS

from .gateway import Gateway, LiveCall
from .media.echo import EchoGuard
from .realtime.errors import ProtocolError
from .realtime.items import new_id
from .realtime.session import RealtimeSession
from .realtime_http import agent_of, find_call

log = logging.getLogger(__name__)

QUEUE_MESSAGES = 3_000 // FRAME_MS  # three seconds of audio frames
QUEUE_BYTES = 1 << 20
FLUSH_S = 2.0
CLOSE_NORMAL, CLOSE_GOING_AWAY, CLOSE_POLICY, CLOSE_TOO_BIG = 1000, 1001, 1008, 1009
CLOSE_ERROR, CLOSE_TRY_LATER = 1011, 1013


class Outbox:
    """The one queue between a session and its socket: bounded.

    `full` is set, and nothing more is taken, once the client has read too slowly.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[str | bytes, str | None]] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.full = asyncio.Event()

    def put(self, message: str | bytes, key: str | None = None) -> None:
        if self.full.is_set():
            return
        if len(self._queue) >= QUEUE_MESSAGES or self._bytes + len(message) > QUEUE_BYTES:
            self.full.set()
            return
        self._queue.append((message, key))
        self._bytes += len(message)
        self._idle.clear()
        self._wake.set()

    def drop(self, key: str) -> None:
        """Forget unsent messages of `key`: the audio of a response that was cut."""
        if any(k == key for _, k in self._queue):
            self._queue = deque(entry for entry in self._queue if entry[1] != key)
            self._bytes = sum(len(message) for message, _ in self._queue)

    async def send_all(self, websocket: WebSocket) -> None:
        """Until cancelled. Raises WebSocketDisconnect when the client is gone."""
        while True:
            while self._queue:
                message, _ = self._queue.popleft()
                self._bytes -= len(message)
                if isinstance(message, str):
                    await websocket.send_text(message)
                else:
                    await websocket.send_bytes(message)
            self._idle.set()
            self._wake.clear()
            await self._wake.wait()

    async def flushed(self) -> None:
        await self._idle.wait()


class RealtimeConnection:
    """Owns one accepted socket until it is closed."""

    def __init__(self, gateway: Gateway, websocket: WebSocket, live: LiveCall) -> None:
        self._gateway = gateway
        self._websocket = websocket
        self._live = live
        self._outbox = Outbox()
        self._close = (CLOSE_NORMAL, "")
        config = gateway.config
        params, grant = websocket.query_params, websocket.scope["grant"]
        model = params.get("model", "voice-agent")[:128]
        live.grant = grant
        self._session = RealtimeSession(
            self._outbox,
            model,
            lead_ms=config.websocket_lead_ms,
            grant=grant,
            on_error=lambda code: gateway.metrics.protocol_errors.labels(code).inc(),
            on_frame=gateway.count_frame,
            guard=self._guard,
            rate_limits=lambda: gateway.rate_limits(grant),
        )
        self._asked = {"type": "transcription"} if params.get("intent") == "transcription" else None
        self._agent = agent_of(gateway, grant, model, params.get("agent"))

    def _guard(self, telephone: bool) -> EchoGuard | None:
        modes = self._gateway.config.echo
        mode = modes.telephone if telephone else modes.realtime
        return self._gateway.echo_guard(mode, self._live)

    def _on_event(self, event: Event) -> None:
        self._gateway.observe(event)
        self._session.on_event(event)

    async def run(self) -> tuple[int, str]:
        """The whole call; returns how to close the socket."""
        live, gateway = self._live, self._gateway
        call = gateway.stack.open_call(
            self._agent, self._on_event, gateway.config.websocket_lead_ms
        )
        live.call = call
        self._session.attach(call, self._asked)
        live.session = self._session
        async with asyncio.TaskGroup() as group:
            talk = group.create_task(self._talk())
            read = group.create_task(self._read())
            write = group.create_task(self._write())
            slow = group.create_task(self._slow())
            leave = gateway.pacer.join(self._session.tick, self._on_fault)
            try:
                jobs = {talk, read, write, slow}
                await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                if talk.done() and not write.done():
                    flush = group.create_task(self._flush())
                    await asyncio.wait({flush, write}, return_when=asyncio.FIRST_COMPLETED)
                elif not talk.done():
                    call.hang_up(live.reason)
                    await asyncio.wait({talk}, timeout=FLUSH_S)
            finally:
                leave()
                for task in (talk, read, write, slow):
                    task.cancel()
        return self._close

    async def _flush(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._outbox.flushed()

    def _on_fault(self, fault: Exception) -> None:
        self._close = (CLOSE_ERROR, "server error")
        self._live.hang_up(EndReason.SERVER_ERROR)

    async def _talk(self) -> None:
        assert self._live.call is not None
        try:
            self._live.reason = await self._live.call.run()
        except Exception:
            log.exception("the call failed")
            self._live.reason = EndReason.SERVER_ERROR
            self._close = (CLOSE_ERROR, "server error")
            return
        if self._live.reason is EndReason.SERVER_DRAINING:
            self._close = (CLOSE_GOING_AWAY, "the server is shutting down")
        elif self._live.reason is EndReason.SERVER_ERROR:
            self._close = (CLOSE_ERROR, "server error")
        elif self._close[0] == CLOSE_NORMAL:
            self._close = (CLOSE_NORMAL, self._live.reason.value)

    async def _read(self) -> None:
        limit = self._gateway.config.max_message_bytes
        self._live.reason = EndReason.CALLER_HUNG_UP
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                if message.get("code") == CLOSE_TOO_BIG:
                    self._live.reason = EndReason.BAD_INPUT
                elif message.get("code") == 1006:
                    self._live.reason = EndReason.TRANSPORT_LOST
                return
            text = message.get("text")
            if text is None:
                text = message.get("bytes") or b""
            if len(text) > limit:
                self._live.reason = EndReason.BAD_INPUT
                self._close = (CLOSE_TOO_BIG, f"messages are limited to {limit} bytes")
                return
            self._session.receive(text)

    async def _write(self) -> None:
        try:
            await self._outbox.send_all(self._websocket)
        except (WebSocketDisconnect, RuntimeError, OSError):
            self._live.reason = EndReason.TRANSPORT_LOST

    async def _slow(self) -> None:
        await self._outbox.full.wait()
        self._gateway.metrics.slow_clients.inc()
        self._live.reason = EndReason.TRANSPORT_LOST
        self._close = (CLOSE_POLICY, "the client reads too slowly")


class Watcher:
    """A further connection to a live session, by its call's id: it sees and may do what the call's
    own client sees and may do. It ends with the call, and the call does not end with it."""

    def __init__(self, gateway: Gateway, websocket: WebSocket, live: LiveCall) -> None:
        self._limit = gateway.config.max_message_bytes
        self._websocket = websocket
        self._live = live
        self._outbox = Outbox()
        self._over = asyncio.Event()

    async def run(self) -> tuple[int, str]:
        session = self._live.session
        assert session is not None
        leave = session.watch(self._outbox)
        self._live.on_end.append(self._over.set)
        code = CLOSE_NORMAL, "the call ended"
        try:
            async with asyncio.TaskGroup() as group:
                read = group.create_task(self._read(session))
                write = group.create_task(self._write())
                slow = group.create_task(self._outbox.full.wait())
                over = group.create_task(self._over.wait())
                jobs = {read, write, slow, over}
                await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                if over.done():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(FLUSH_S):
                            await self._outbox.flushed()
                elif slow.done():
                    code = CLOSE_POLICY, "the client reads too slowly"
                for job in jobs:
                    job.cancel()
        finally:
            leave()
            self._live.on_end.remove(self._over.set)
        return code

    async def _read(self, session: RealtimeSession) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text") or message.get("bytes") or b""
            if len(text) > self._limit:
                return
            session.receive(text, self._outbox)

    async def _write(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            await self._outbox.send_all(self._websocket)


async def realtime_endpoint(websocket: WebSocket) -> None:
    """Accept, admit, talk, close; every path ends in a closed socket and a freed line."""
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol="realtime" if "realtime" in offered else None)
    try:
        code, reason = await _serve(websocket)
    except CapacityError as error:
        await _refuse(websocket, error.code, str(error.args[0]), "server_overloaded")
        code, reason = CLOSE_TRY_LATER, str(error.args[0])
    except (VoiceAgentError, ProtocolError) as error:
        await _refuse(websocket, error.code, str(error.args[0]), "invalid_request_error")
        code, reason = CLOSE_POLICY, str(error.args[0])
    except Exception:
        log.exception("a Realtime call failed")
        await _refuse(websocket, "VA300", "The call failed.", "server_error")
        code, reason = CLOSE_ERROR, "server error"
    # the client may have closed first, or read nothing: then the socket's keep-alive ends it
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError, TimeoutError):
        async with asyncio.timeout(FLUSH_S):
            await websocket.close(code, reason[:120])


async def _serve(websocket: WebSocket) -> tuple[int, str]:
    """A call of its own, or somebody else's to watch (`?call_id=`)."""
    gateway: Gateway = websocket.app.state.gateway
    call_id = websocket.query_params.get("call_id")
    if call_id is None:
        with gateway.admit("realtime") as live:
            return await RealtimeConnection(gateway, websocket, live).run()
    watched = find_call(gateway, websocket.scope["grant"], call_id)
    if watched is None or watched.session is None:
        raise ProtocolError("call_not_found", "There is no such call, or it is not yours.")
    return await Watcher(gateway, websocket, watched).run()


async def _refuse(websocket: WebSocket, code: str, message: str, kind: str) -> None:
    event = {
        "type": "error",
        "event_id": new_id("event"),
        "error": {
            "type": kind,
            "code": code,
            "message": message,
            "param": None,
            "event_id": None,
        },
    }
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
        await websocket.send_text(json.dumps(event))
