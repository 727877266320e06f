"""The paths of the OpenAI-compatible HTTP API."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.gateway import Gateway

from .answer import Answer, Parts
from .chat import chat
from .completions import complete
from .door import Door, read, tenant_of
from .errors import ApiError
from .wire import ChatRequest, CompletionRequest


def openai_routes(gateway: Gateway) -> list[Route]:
    """For the application; everything below `/v1/` that no other route took is answered too."""
    door = Door(gateway)
    api = Api(door)
    return [
        Route("/v1/models", api.models),
        Route("/v1/models/{name:path}", api.model),
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/completions", api.complete, methods=["POST"]),
        Route("/v1/{rest:path}", _unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
    ]


class Api:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._since = int(time.time())

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": self._models()})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        for model in self._models():
            if model["id"] == name:
                return JSONResponse(model)
        message = f"The model {name[:100]!r} is not served here."
        return ApiError(404, message, code="model_not_found", param="model").response()

    def _models(self) -> list[dict[str, Any]]:
        stack = self._door.gateway.stack
        if stack.engine is None:
            return []
        return [
            {
                "id": stack.engine_model,
                "object": "model",
                "created": self._since,
                "owned_by": "voice-agent",
                "max_model_len": stack.engine.max_model_len,
            }
        ]

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, "chat", ChatRequest, chat)

    async def complete(self, request: Request) -> Response:
        return await self._answer(request, "completions", CompletionRequest, complete)

    async def _answer(
        self, request: Request, route: str, kind: Any, make: Callable[[Door, Any, str], Parts]
    ) -> Response:
        gateway = self._door.gateway

        def count(status: int) -> None:
            gateway.metrics.http_requests.labels(route, str(status)).inc()

        try:
            body = await read(request, kind, gateway.config.max_message_bytes)
        except ApiError as error:
            count(error.status)
            return error.response()
        except ClientDisconnect:
            count(499)
            return Response(status_code=400)
        return Answer(lambda: make(self._door, body, tenant_of(request)), count)


async def _unknown(request: Request) -> Response:
    message = f"There is no {request.method} {request.url.path} here."
    return ApiError(404, message, code="unknown_url").response()
