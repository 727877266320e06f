"""`POST /api/token`: a key is traded for a token of 60 s; a public page needs no key."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from voice_agent.errors import CapacityError, UsageError

from .admission import RETRY_AFTER_S
from .auth import PAGE
from .gateway import Gateway
from .grant import Change, Grant, Scope
from .tokens import DEFAULT_S

MAX_BODY = 4096


class Wanted(BaseModel):
    """What the token shall be good for; by default calls of any agent that the key opens, and no
    change to them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: Annotated[str, Field(max_length=128)] | None = None
    seconds: Annotated[int, Field(strict=True)] = DEFAULT_S
    scopes: tuple[Scope, ...] = (Scope.CALL,)
    changes: tuple[Change, ...] = ()


async def token_endpoint(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    grant = _maker(request, gateway)
    if grant is None:
        return _refusal(401, "invalid_api_key", "This server asks for a key.")
    try:
        wanted = await _wanted(request)
        _known(wanted.agent, gateway)
        token = gateway.doorkeeper.tokens.mint(
            grant,
            seconds=wanted.seconds,
            agent=wanted.agent,
            changes=wanted.changes,
            scopes=wanted.scopes,
        )
    except UsageError as error:
        return _refusal(400, error.code, str(error.args[0]))
    except CapacityError as error:
        return _refusal(503, error.code, str(error.args[0]))
    except ClientDisconnect:
        return Response(status_code=400)
    agent = wanted.agent or grant.agent
    body = {
        "token": token.value,
        "expires_at": token.expires_at,
        "expires_in": token.expires_at - int(time.time()),
        "agents": [agent] if agent else list(gateway.stack.agent_names()),
    }
    return JSONResponse(body, headers={"cache-control": "no-store"})


def _maker(request: Request, gateway: Gateway) -> Grant | None:
    """Who asks: the holder of a key, or whoever opens a public page."""
    grant: Grant | None = request.scope.get("grant")
    if grant is None and gateway.config.page == "public":
        first = gateway.stack.agent_names()[0]
        return Grant(PAGE.subject, PAGE.scopes, PAGE.changes, first)
    return grant


async def _wanted(request: Request) -> Wanted:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise UsageError(f"The request may have {MAX_BODY} bytes at most.", code="VA455")
    try:
        return Wanted.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{place or 'body'}: {first['msg']}.", code="VA455") from None


def _known(agent: str | None, gateway: Gateway) -> None:
    if agent is not None and agent not in gateway.stack.agent_names():
        raise UsageError(f"There is no agent {agent[:64]!r} here.", code="VA465")


def _refusal(status: int, code: str, message: str) -> JSONResponse:
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)
