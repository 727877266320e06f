"""`POST /api/calls`: the server calls someone. Needs a key with scope admin."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from gateway.admission import retry_after
from voice_agent.errors import CapacityError, InternalError, UsageError

from .telephone import Telephone

MAX_BODY = 4096


class Wanted(BaseModel):
    """to: `sip:user@host`, or a number where there is a trunk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: Annotated[str, Field(min_length=1, max_length=256)]
    agent: Annotated[str, Field(max_length=128)] | None = None


async def calls_endpoint(request: Request) -> Response:
    """Answers once they did: 200, or why not."""
    telephone: Telephone | None = request.app.state.telephone
    if telephone is None:
        return _refusal(404, "VA507", "This server has no telephone: start it with --sip.")
    try:
        wanted = await _wanted(request)
        await telephone.call(wanted.to, wanted.agent)
    except CapacityError as error:
        return _refusal(503, error.code, str(error.args[0]), retry_after=retry_after(error))
    except UsageError as error:
        return _refusal(409 if error.code == "VA505" else 400, error.code, str(error.args[0]))
    except InternalError as error:
        return _refusal(500, error.code, str(error.args[0]))
    except ClientDisconnect:
        return Response(status_code=400)
    return JSONResponse({"status": "answered"})


async def _wanted(request: Request) -> Wanted:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise UsageError(f"The request may have {MAX_BODY} bytes at most.", code="VA504")
    try:
        return Wanted.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{place or 'body'}: {first['msg']}.", code="VA504") from None


def _refusal(status: int, code: str, message: str, **headers: str) -> JSONResponse:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({"error": {"code": code, "message": message}}, status, names)
