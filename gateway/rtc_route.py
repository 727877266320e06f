"""`POST /rtc/offer`: the page's call over WebRTC; `POST /rtc/resume`: back to one without a line.

Both take an SDP offer in JSON and answer with theirs, the call's credential (`resume`) and how long
it waits without a line (`hold_s`). The second needs no key: the credential is its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from voice_agent.errors import CapacityError, InternalError, UsageError

from .admission import retry_after
from .gateway import Gateway
from .line_call import MOST_SILENT_MS, LineCall, Return
from .resume import find
from .rtc_side import PageSide
from .webrtc import rtc_way
from .workers.link import Message

RESUME = "/rtc/resume"
MOST_SEEN = 1 << 30


async def offer_endpoint(request: Request) -> Response:
    return await _answered(request, _begin)


async def resume_offer_endpoint(request: Request) -> Response:
    return await _answered(request, _resume)


async def _begin(request: Request, gateway: Gateway) -> Message:
    data = await _read(request, gateway.config.max_sdp_bytes)
    sdp, agent = data.get("sdp"), data.get("agent")
    if data.get("type") != "offer":
        raise UsageError('Send JSON: {"type": "offer", "sdp": "...", "agent": NAME}', code="VA463")
    if not isinstance(sdp, str) or not (agent is None or isinstance(agent, str)):
        raise UsageError("`sdp` and `agent` must be texts.", code="VA463")
    grant = request.scope["grant"]
    agent = grant.agent_for(agent or None)
    side = PageSide(gateway, agent)
    call = LineCall(gateway, side, agent, grant=grant)
    calls: asyncio.TaskGroup = request.app.state.calls
    calls.create_task(call.run(rtc_way(gateway, side, sdp)))
    return await call.answer


async def _resume(request: Request, gateway: Gateway) -> Message:
    """Or, with the type `hangup`, the end of a call that has no line to say it over."""
    data = await _read(request, gateway.config.max_sdp_bytes)
    token, sdp = data.get("resume"), data.get("sdp")
    hangs_up = data.get("type") == "hangup"
    if not isinstance(token, str) or not (hangs_up or isinstance(sdp, str)):
        raise UsageError(
            'Send JSON: {"type": "offer", "sdp": "...", "resume": CREDENTIAL}', code="VA463"
        )
    call = find(gateway.resumable, token)
    if hangs_up:
        call.leave()
        return {}
    back = Return(_number(data, "seen", MOST_SEEN), _number(data, "silent_ms", MOST_SILENT_MS))
    return await call.resume(rtc_way(gateway, call.side, str(sdp)), back)


def _number(data: dict[str, Any], name: str, most: int) -> int:
    """0 to `most`; nonsense is 0."""
    value = data.get(name)
    plain = isinstance(value, int) and not isinstance(value, bool)
    return min(most, max(0, value)) if plain else 0  # type: ignore[type-var, return-value]


async def _answered(
    request: Request, act: Callable[[Request, Gateway], Awaitable[Message]]
) -> Response:
    try:
        answer = await act(request, request.app.state.gateway)
    except CapacityError as error:
        retry = {"retry-after": retry_after(error)}
        return _refusal(503, error.code, str(error.args[0]), retry)
    except UsageError as error:
        status = 410 if error.code == "VA498" else 400
        return _refusal(status, error.code, str(error.args[0]))
    except InternalError as error:
        return _refusal(500, error.code, str(error.args[0]))
    except ClientDisconnect:
        return Response(status_code=400)
    kept = {name: answer[name] for name in ("sdp", "resume", "hold_s") if name in answer}
    return JSONResponse({"type": "answer", **kept}, headers={"cache-control": "no-store"})


def _refusal(
    status: int, code: str, message: str, headers: dict[str, str] | None = None
) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


async def _read(request: Request, limit: int) -> dict[str, Any]:
    """The JSON body. UsageError says what is wrong with it."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise UsageError(f"An offer may have {limit} bytes at most.", code="VA466")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise UsageError('Send JSON: {"type": "offer", "sdp": "..."}', code="VA463")
    return data
