"""Errors in OpenAI's shape, each with the status that tells a client whether to try again."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from engine.errors import CapacityError, NeverFitsError, UsageError

RETRY_AFTER_S = 2


class ApiError(Exception):
    """What a client is told. 429 and 503 also say when to come back."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        return {"error": error_object(self.status, self.message, self.code, self.param)}

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": str(RETRY_AFTER_S)} if self.status in (429, 503) else {}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def error_object(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The `error` of a body."""
    kind = {429: "rate_limit_error", 503: "server_error", 500: "server_error"}
    return {
        "message": message,
        "type": kind.get(status, "invalid_request_error"),
        "param": param,
        "code": code,
    }


def of_engine(error: Exception) -> ApiError:
    """What the engine refused a request for, or ended it with."""
    if isinstance(error, NeverFitsError):
        return ApiError(400, _sentence(error), code="context_length_exceeded")
    if isinstance(error, CapacityError):
        return ApiError(503, _sentence(error), code="engine_overloaded")
    if isinstance(error, UsageError):
        return ApiError(400, _sentence(error))
    return ApiError(500, "The engine failed; the server's log says more.", code="internal_error")


def of_validation(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    if first["type"] == "extra_forbidden":
        return ApiError(
            400, f"Unknown parameter: {param!r}.", code="unknown_parameter", param=param
        )
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    message = f"{param}: {first['msg']}" if param else first["msg"]
    return ApiError(400, message, code=code, param=param)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
