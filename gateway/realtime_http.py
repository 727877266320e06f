"""Realtime over HTTP: calls by SDP, what else can be done with a call, and keys for browsers."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voice_agent.errors import CapacityError, InternalError, UsageError, VoiceAgentError
from voice_agent.events import EndReason

from .admission import RETRY_AFTER_S, retry_after
from .gateway import Gateway, LiveCall
from .grant import Change, Grant
from .line_call import LineCall
from .realtime.client_events import parse_session
from .realtime.errors import ProtocolError
from .realtime.items import new_id
from .realtime.permits import check_update
from .realtime.settings import Settings, revise
from .realtime_rtc import RealtimeSide
from .tokens import LEAST_S, MOST_S
from .webrtc import rtc_way

PATH = "/v1/realtime"
DEFAULT_SECRET_S = 600
MAX_BODY = 320 << 10


def realtime_routes() -> list[Route]:
    return [
        Route(f"{PATH}/calls", _open, methods=["POST"]),
        Route(f"{PATH}/calls/{{call_id}}/hangup", _hang_up, methods=["POST"]),
        Route(f"{PATH}/calls/{{call_id}}/refer", _refer, methods=["POST"]),
        Route(f"{PATH}/calls/{{call_id}}/accept", _no_webhook, methods=["POST"]),
        Route(f"{PATH}/calls/{{call_id}}/reject", _no_webhook, methods=["POST"]),
        Route(f"{PATH}/client_secrets", _client_secret, methods=["POST"]),
    ]


def refusal(status: int, code: str, message: str, param: str | None = None) -> JSONResponse:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    error = {"type": kind, "code": code, "message": message, "param": param}
    return JSONResponse({"error": error}, status, headers)


def _refused(error: Exception) -> Response:
    """What went wrong, in the API's shape. Raises what is no refusal."""
    match error:
        case ProtocolError(code=code, message=message, param=param):
            status = 403 if code == "not_allowed" else 400
            return refusal(status, code, message, param)
        case CapacityError():
            answer = refusal(503, error.code, str(error.args[0]))
            answer.headers["retry-after"] = retry_after(error)
            return answer
        case InternalError():
            return refusal(500, error.code, str(error.args[0]))
        case VoiceAgentError():
            return refusal(400, error.code, str(error.args[0]))
        case ClientDisconnect():
            return Response(status_code=400)
    raise error


# ---------------------------------------------------------------- a call by SDP


async def _open(request: Request) -> Response:
    """The offer is the body (`application/sdp`), or the field `sdp` of a form beside `session`."""
    gateway: Gateway = request.app.state.gateway
    grant: Grant = request.scope["grant"]
    try:
        sdp, session = await _offer(request, gateway.config.max_sdp_bytes)
        given = request.query_params.get("model") or str((session or {}).get("model") or "")
        agent = agent_of(gateway, grant, given, request.query_params.get("agent"))
        side = RealtimeSide(gateway, grant, agent, given[:128] or "voice-agent", session)
        call = LineCall(gateway, side, agent, grant=grant)
        calls: asyncio.TaskGroup = request.app.state.calls
        calls.create_task(call.run(rtc_way(gateway, side, sdp)))
        answer = (await call.answer)["sdp"]
    except (ProtocolError, VoiceAgentError, ClientDisconnect) as error:
        return _refused(error)
    headers = {"location": f"{PATH}/calls/{side.call_id}"}
    return Response(answer, 201, headers, media_type="application/sdp")


def agent_of(gateway: Gateway, grant: Grant, model: str, agent: str | None) -> str | None:
    """`model` is what stock clients must send; it names an agent if there is one of that name.

    Raises UsageError VA458.
    """
    if agent is None and model in gateway.stack.agent_names():
        agent = model
    return grant.agent_for(agent)


async def _offer(request: Request, max_sdp: int) -> tuple[str, dict[str, Any] | None]:
    """(sdp, session). Raises UsageError VA463, VA466."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        try:
            async with request.form(max_files=0, max_fields=8, max_part_size=MAX_BODY) as form:
                sdp, session = form.get("sdp"), form.get("session")
        except HTTPException as error:
            raise UsageError(f"The form could not be read: {error.detail}", code="VA463") from None
        if not isinstance(sdp, str) or not isinstance(session, str | None):
            raise UsageError("The form needs `sdp`, and may have `session`.", code="VA463")
        return _bounded(sdp, max_sdp), _object(session) if session else None
    if kind != "application/sdp":
        raise UsageError(
            "Send the offer as application/sdp, or as `sdp` of multipart/form-data.", code="VA463"
        )
    body = await _body(request, max_sdp, "VA466")
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        raise UsageError("The offer is not text.", code="VA463") from None


def _bounded(sdp: str, max_sdp: int) -> str:
    if len(sdp) > max_sdp:
        raise UsageError(f"An offer may have {max_sdp} bytes at most.", code="VA466")
    return sdp


async def _body(request: Request, limit: int, code: str) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise UsageError(f"The body may have {limit} bytes at most.", code=code)
    return body


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        data = json.loads(text or "{}")
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise UsageError("Send a JSON object.", code="VA100")
    return data


# ---------------------------------------------------------------- a call by its id


def find_call(gateway: Gateway, grant: Grant, call_id: str) -> LiveCall | None:
    """A live call that `grant` may touch: its own, or any for an admin."""
    for live in gateway.live:
        if live.id == call_id:
            return live if _owns(grant, live.grant) else None
    return None


def _owns(grant: Grant, of_call: Grant | None) -> bool:
    if grant.token is not None:  # a token reaches the calls that it opened itself
        return of_call is not None and of_call.token == grant.token
    return grant.admin or (of_call is not None and of_call.subject == grant.subject)


def _live(request: Request) -> LiveCall | None:
    gateway: Gateway = request.app.state.gateway
    return find_call(gateway, request.scope["grant"], request.path_params["call_id"])


def _no_such_call() -> Response:
    return refusal(404, "call_not_found", "There is no such call, or it is not yours.", "call_id")


async def _hang_up(request: Request) -> Response:
    live = _live(request)
    if live is None:
        return _no_such_call()
    live.hang_up(EndReason.CALLER_HUNG_UP)
    return Response(status_code=200)


async def _refer(request: Request) -> Response:
    """The caller is handed on: telephone lines only. It is answered once the line has done so."""
    live = _live(request)
    if live is None or live.call is None:
        return _no_such_call()
    try:
        target = _object(await _body(request, MAX_BODY, "VA100")).get("target_uri")
        if not isinstance(target, str) or not target:
            raise UsageError("`target_uri` says where to: tel:+44... or sip:...", code="VA100")
        await live.call.transfer(target)
    except (VoiceAgentError, ClientDisconnect) as error:
        return _refused(error)
    return Response(status_code=200)


async def _no_webhook(request: Request) -> Response:
    return refusal(
        501,
        "not_implemented",
        "Calls are answered by the agents' files; there is no realtime.call.incoming webhook here.",
    )


# ---------------------------------------------------------------- keys for browsers


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(strict=True, ge=LEAST_S, le=MOST_S)] = DEFAULT_SECRET_S


class Wanted(BaseModel):
    """agent, changes: ours, beside the protocol's: the only agent, and what the holder may change
    of a session beside audio formats and muting."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, Any] | None = None
    agent: Annotated[str, Field(max_length=128)] | None = None
    changes: tuple[Change, ...] = ()


async def _client_secret(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    grant: Grant = request.scope["grant"]
    try:
        wanted = _wanted(await _body(request, MAX_BODY, "VA455"))
        session = wanted.session or {}
        model = str(session.get("model") or "voice-agent")[:128]
        now = Settings(session_id=new_id("sess"), model=model)
        after = revise(now, parse_session(session))
        check_update(grant, now, after)
        if wanted.agent is not None and wanted.agent not in gateway.stack.agent_names():
            raise UsageError(f"There is no agent {wanted.agent[:64]!r} here.", code="VA465")
        token = gateway.doorkeeper.tokens.mint(
            grant,
            seconds=wanted.expires_after.seconds,
            agent=agent_of(gateway, grant, model, wanted.agent),
            changes=wanted.changes,
            session=wanted.session,
        )
    except (ProtocolError, VoiceAgentError, ClientDisconnect) as error:
        return _refused(error)
    body = {"value": token.value, "expires_at": token.expires_at, "session": after.wire()}
    return JSONResponse(body, headers={"cache-control": "no-store"})


def _wanted(body: bytes) -> Wanted:
    try:
        return Wanted.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{place or 'body'}: {first['msg']}.", code="VA455") from None
