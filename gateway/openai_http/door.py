"""What every request of this API passes: readiness, the key's own share, its body."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from engine.client import Engine
from gateway.gateway import Gateway

from .errors import ApiError, of_validation

Body = TypeVar("Body", bound=BaseModel)


class Door:
    """Owned by the application. Counts open replies by tenant; one thread, so it is exact."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._open: Counter[str] = Counter()
        gateway.gauge_sources.append(lambda: {"http_replies_open": float(self._open.total())})

    def engine(self, model: str) -> Engine:
        """The engine that serves a model. Raises ApiError 404 for any other, 503 before ready."""
        stack = self.gateway.stack
        if self.gateway.admission.draining:
            raise ApiError(503, "The server is shutting down.", code="shutting_down")
        if not stack.ready:
            raise ApiError(503, "The server is still loading.", code="loading")
        if stack.engine is None or model != stack.engine_model:
            served = f"the model here is {stack.engine_model!r}" if stack.engine else "none is"
            message = f"The model {model[:100]!r} is not served here: {served}."
            raise ApiError(404, message, code="model_not_found", param="model")
        return stack.engine

    @contextlib.contextmanager
    def room(self, tenant: str, n: int) -> Iterator[None]:
        """Raises ApiError 429 when the tenant has too many replies open."""
        most = self.gateway.config.max_http_replies
        if self._open[tenant] + n > most:
            raise ApiError(
                429,
                f"{self._open[tenant]} replies are open for this key, and {most} may be: wait for "
                "some to end.",
                code="rate_limit_exceeded",
            )
        self._open[tenant] += n
        try:
            yield
        finally:
            self._open[tenant] -= n
            if not self._open[tenant]:
                del self._open[tenant]


def tenant_of(request: Request) -> str:
    """A key's own tenant: its cached prompts are shared with no other key and no call."""
    _, _, key = request.headers.get("authorization", "").partition(" ")
    return "http:" + hashlib.sha256(key.strip().encode()).hexdigest()[:16]


async def read(request: Request, kind: type[Body], limit: int) -> Body:
    """Raises ApiError for a body that is too large, no JSON, or not what `kind` takes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            message = f"A request may have {limit} bytes at most."
            raise ApiError(413, message, code="request_too_large")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        raise of_validation(error) from None
