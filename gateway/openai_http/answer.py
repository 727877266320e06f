"""Sends what an endpoint makes, as one body or as server-sent events, while the client is there."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer in one piece."""

    body: dict[str, Any]


Parts = AsyncGenerator[Whole | dict[str, Any], None]
"""One Whole, or the chunks of a stream."""


class Answer(Response):
    """`make` is run, and cancelled the moment the client is gone. The body must have been read.

    An ApiError before the first part becomes the response's status; after it, the stream's last
    event. on_end: told the status, 499 for a client that left.
    """

    def __init__(self, make: Callable[[], Parts], on_end: Callable[[int], None]) -> None:
        super().__init__()
        self._make = make
        self._on_end = on_end
        self._status = 499

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                work = group.create_task(self._run(scope, receive, send))
                watch = group.create_task(_cancel_when_gone(receive, work))
                await asyncio.wait({work})
                watch.cancel()
        finally:
            self._on_end(self._status)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._make()) as parts:
            try:
                first = await anext(parts)
            except ApiError as error:
                self._status = error.status
                await error.response()(scope, receive, send)
            except Exception:
                log.exception("request failed")
                self._status = 500
                await ApiError(500, "The server failed.").response()(scope, receive, send)
            else:
                if isinstance(first, Whole):
                    await JSONResponse(first.body)(scope, receive, send)
                    self._status = 200
                else:
                    await self._stream(first, parts, send)

    async def _stream(self, first: dict[str, Any], parts: Parts, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_event(first))
        try:
            async for part in parts:
                assert isinstance(part, dict)
                await send(_event(part))
        except ApiError as error:
            self._status = error.status
            await send(_event(error.body))
        except Exception:
            log.exception("stream failed")
            self._status = 500
            await send(_event(ApiError(500, "The server failed.").body))
        else:
            await send(_bytes(b"data: [DONE]\n\n"))
            self._status = 200
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(data: dict[str, Any]) -> dict[str, Any]:
    return _bytes(b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n")


def _bytes(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _cancel_when_gone(receive: Receive, work: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    work.cancel()
