"""The WebSocket `/twilio`: one stream is one call, from its handshake to its last word."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.admission import OWNER
from gateway.auth import Refusal
from gateway.call_port import CallPort
from gateway.gateway import Gateway, LiveCall
from gateway.grant import LOCAL, Grant, Scope
from gateway.limits import neighbourhood
from gateway.realtime.errors import ProtocolError
from gateway.realtime_ws import (
    CLOSE_ERROR,
    CLOSE_GOING_AWAY,
    CLOSE_NORMAL,
    CLOSE_POLICY,
    CLOSE_TOO_BIG,
    CLOSE_TRY_LATER,
    FLUSH_S,
    Outbox,
)
from voice_agent.errors import CapacityError, UsageError, VoiceAgentError
from voice_agent.events import EndReason, Event

from .session import TwilioSession
from .signature import HEADER, genuine
from .wire import Connected, Start, StartBody, parse

log = logging.getLogger(__name__)

PATH = "/twilio"
START_S = 10.0
TAIL_S = 3.0  # for the last words to be played, by the marks behind them
MAX_MESSAGE = 64 << 10
MAX_STRANGERS = 64  # streams that have not started
PLATFORM = Grant("twilio", frozenset([Scope.CALL]), frozenset())
"""Whoever signs with the account's auth token."""
_CLOSING = {
    EndReason.SERVER_DRAINING: (CLOSE_GOING_AWAY, "the server is shutting down"),
    EndReason.SERVER_ERROR: (CLOSE_ERROR, "server error"),
    EndReason.BAD_INPUT: (CLOSE_TOO_BIG, f"messages are limited to {MAX_MESSAGE} bytes"),
}


class TwilioDoor:
    """Owned by the application. A stream shows who it is by the platform's signature, by a key in
    its handshake, or by a key or token in the parameter `token` of its start."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._strangers = 0

    async def serve(self, websocket: WebSocket) -> None:
        """Every path ends in a closed socket and a freed line."""
        grant = self._handshake(websocket)
        if isinstance(grant, Refusal):
            error = {"error": {"code": grant.code, "message": grant.message}}
            await websocket.send_denial_response(JSONResponse(error, grant.status))
            return
        try:
            code, reason = await self._serve(websocket, grant)
        except CapacityError as error:
            code, reason = CLOSE_TRY_LATER, str(error.args[0])
        except (VoiceAgentError, ProtocolError) as error:
            log.info("a media stream was refused", extra={"code": error.code})
            code, reason = CLOSE_POLICY, str(error.args[0])
        except (WebSocketDisconnect, TimeoutError):
            code, reason = CLOSE_POLICY, "no start"
        except Exception:
            log.exception("a media stream failed")
            code, reason = CLOSE_ERROR, "server error"
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError, TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await websocket.close(code, reason[:120])

    def _handshake(self, websocket: WebSocket) -> Grant | Refusal | None:
        """None: it must show in its start who it is."""
        secret = self._gateway.config.twilio_auth_token
        offered = websocket.headers.get(HEADER)
        if secret and offered is not None:
            url = websocket.url
            host = websocket.headers.get("host", "")
            if genuine(secret, offered, host, url.path, url.query):
                return PLATFORM
            return Refusal(403, "bad_signature", "The X-Twilio-Signature is not this account's.")
        grant: Grant | None = websocket.scope.get("grant")
        if grant is None or (secret and grant.subject == LOCAL.subject):
            return None
        return self._gateway.doorkeeper.check_scope(grant, PATH) or grant

    async def _serve(self, websocket: WebSocket, grant: Grant | None) -> tuple[int, str]:
        gateway = self._gateway
        with self._stranger():
            await websocket.accept()
            async with asyncio.timeout(START_S):
                start = await _started(websocket)
        if grant is None:
            grant = self._by_parameter(start, websocket)
        asked = start.customParameters.get("agent") or websocket.query_params.get("agent")
        agent = grant.agent_for(asked)
        if not start.mediaFormat.ulaw:
            raise UsageError("Only mu-law with 8 kHz and one channel is spoken here.", code="VA469")
        with gateway.admit("twilio") as live:
            live.grant = grant
            return await Stream(gateway, websocket, live).run(start, agent)

    def _by_parameter(self, start: StartBody, websocket: WebSocket) -> Grant:
        keeper = self._gateway.doorkeeper
        token = start.customParameters.get("token", "")
        grant = keeper.identify({"authorization": f"Bearer {token}"}, ()) if token else None
        if not isinstance(grant, Grant) or not grant.opens(Scope.CALL) or grant == LOCAL:
            raise UsageError("The stream does not show who it is.", code="VA469")
        client = websocket.client
        OWNER.set(keeper.owner(grant, neighbourhood(client.host if client else "")))
        return grant

    @contextlib.contextmanager
    def _stranger(self) -> Iterator[None]:
        if self._strangers >= MAX_STRANGERS:
            raise CapacityError("Too many streams have not started yet.", code="VA460")
        self._strangers += 1
        try:
            yield
        finally:
            self._strangers -= 1


async def _started(websocket: WebSocket) -> StartBody:
    """Raises UsageError VA469 for anything else than `connected` and `start`."""
    for _ in range(2):
        match parse(await _text(websocket)):
            case Connected():
                pass
            case Start(start=start):
                return start
            case _:
                break
    raise UsageError("A stream begins with `connected` and `start`.", code="VA469")


async def _text(websocket: WebSocket) -> str | bytes:
    """Raises WebSocketDisconnect, UsageError VA469 for a message that is too long."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    text: str | bytes = message.get("text") or message.get("bytes") or b""
    if len(text) > MAX_MESSAGE:
        raise UsageError(f"A message may have {MAX_MESSAGE} bytes at most.", code="VA469")
    return text


class Stream:
    """Owns one accepted socket until the call is over."""

    def __init__(self, gateway: Gateway, websocket: WebSocket, live: LiveCall) -> None:
        self._gateway = gateway
        self._websocket = websocket
        self._live = live
        self._outbox = Outbox()
        self._session: TwilioSession | None = None
        self._quiet = asyncio.Event()

    def _on_fault(self, fault: Exception) -> None:
        self._live.hang_up(EndReason.SERVER_ERROR)

    def _on_event(self, event: Event) -> None:
        self._gateway.observe(event)
        if self._session is not None:
            self._session.on_event(event)

    async def run(self, start: StartBody, agent: str | None) -> tuple[int, str]:
        """The whole call; returns how to close the socket."""
        live, gateway = self._live, self._gateway
        lead_ms = gateway.config.websocket_lead_ms
        call = live.call = gateway.stack.open_call(agent, self._on_event, lead_ms)
        session = self._session = TwilioSession(
            self._outbox,
            start,
            call,
            gateway.clock,
            lead_ms=lead_ms,
            on_error=lambda code: gateway.metrics.protocol_errors.labels(code).inc(),
            on_frame=gateway.count_frame,
            on_quiet=self._quiet.set,
            guard=gateway.echo_guard(gateway.config.echo.telephone, live),
        )
        async with asyncio.TaskGroup() as group:
            talk = group.create_task(self._talk(call))
            read = group.create_task(self._read(session))
            write = group.create_task(self._write())
            slow = group.create_task(self._outbox.full.wait())
            leave = gateway.pacer.join(session.tick, self._on_fault)
            try:
                jobs = {talk, read, write, slow}
                await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                if not talk.done():
                    if slow.done():
                        gateway.metrics.slow_clients.inc()
                        live.reason = EndReason.TRANSPORT_LOST
                    call.hang_up(live.reason)
                    await talk
                else:
                    live.reason = talk.result()
                    if not (read.done() or write.done()):
                        await self._heard_out(session, {read, write})
            finally:
                leave()
                for task in jobs:
                    task.cancel()
        return _CLOSING.get(live.reason, (CLOSE_NORMAL, live.reason.value))

    async def _talk(self, call: CallPort) -> EndReason:
        try:
            return await call.run()
        except Exception:
            log.exception("the call failed")
            return EndReason.SERVER_ERROR

    async def _heard_out(self, session: TwilioSession, gone: set[asyncio.Task[None]]) -> None:
        """Until the caller has heard the last words."""
        if session.quiet:
            return
        self._quiet.clear()
        quiet = asyncio.create_task(self._quiet.wait())
        try:
            await asyncio.wait({quiet, *gone}, timeout=TAIL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            quiet.cancel()

    async def _read(self, session: TwilioSession) -> None:
        self._live.reason = EndReason.CALLER_HUNG_UP
        while not session.stopped:
            try:
                text = await _text(self._websocket)
            except WebSocketDisconnect as error:
                if error.code == 1006:
                    self._live.reason = EndReason.TRANSPORT_LOST
                return
            except UsageError:
                self._live.reason = EndReason.BAD_INPUT
                return
            session.receive(text)

    async def _write(self) -> None:
        try:
            await self._outbox.send_all(self._websocket)
        except (WebSocketDisconnect, RuntimeError, OSError):
            self._live.reason = EndReason.TRANSPORT_LOST
