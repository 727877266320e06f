"""An OpenAI-compatible endpoint that says what it is told to, over a socket or in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send


@dataclass(frozen=True)
class Answer:
    """steps: text to send, or seconds to wait. head_s: before the status. body: of an error, or
    raw events instead of steps. cut: the connection breaks before the end."""

    steps: Sequence[str | float] = ("It is ", "noon.")
    status: int = 200
    head_s: float = 0.0
    finish: str | None = "stop"
    usage: dict[str, Any] | None = None
    body: bytes | None = None
    cut: bool = False
    content_type: str = "text/event-stream"


class ScriptedOpenAI:
    """answers are used one per request, the last one again and again. cancelled: requests whose
    client left before the end."""

    def __init__(self, *answers: Answer, models: Sequence[str] = ("m",)) -> None:
        self.answers = list(answers) or [Answer()]
        self.models = models
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = 0
        self.cancelled = 0
        self.said: list[str] = []
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        self.app = Starlette(routes=routes)

    async def _models(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        return JSONResponse({"object": "list", "data": [{"id": m} for m in self.models]})

    async def _chat(self, request: Request) -> Response:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        return _Telling(self, self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    @property
    def transport(self) -> httpx2.AsyncBaseTransport:
        """The way to it inside one event loop."""
        return _InLoop(self.app)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yields the base URL of a real socket."""
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(self.app, log_level="critical", lifespan="off"))
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[sock]))
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            try:
                yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
            finally:
                server.should_exit = True
        sock.close()


class _Telling(Response):
    def __init__(self, owner: ScriptedOpenAI, answer: Answer) -> None:
        self._owner = owner
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._owner.running += 1
        speaking = asyncio.ensure_future(self._speak(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({speaking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            self._owner.cancelled += not speaking.done()
        finally:
            self._owner.running -= 1
            speaking.cancel()
            leaving.cancel()
            await asyncio.wait({speaking, leaving})
        if self._answer.cut:
            raise ConnectionError("cut, as told")

    async def _speak(self, send: Send) -> None:
        a = self._answer
        await asyncio.sleep(a.head_s)
        kind = a.content_type if a.status == 200 else "application/json"
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": a.status, "headers": headers})

        async def part(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        if a.body is not None or a.status != 200:
            await part(a.body or b"{}", more=False)
            return
        for step in a.steps:
            if isinstance(step, str):
                self._owner.said.append(step)
                await part(event({"choices": [{"index": 0, "delta": {"content": step}}]}))
            else:
                await asyncio.sleep(step)
        if a.cut:
            return
        if a.finish is not None:
            await part(event({"choices": [{"index": 0, "delta": {}, "finish_reason": a.finish}]}))
        if a.usage is not None:
            await part(event({"choices": [], "usage": a.usage}))
        await part(b"data: [DONE]\n\n", more=False)


def event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _InLoop(httpx2.AsyncBaseTransport):
    """Runs the app beside its client, streaming and closing like a socket: no time passes."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        link = _Link(body)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1",
            "method": request.method, "scheme": "http", "path": request.url.path,
            "raw_path": request.url.raw_path, "query_string": b"", "root_path": "",
            "headers": [(k.lower(), v) for k, v in request.headers.raw],
            "server": ("scripted", 80), "client": ("client", 1),
        }  # fmt: skip
        link.task = asyncio.ensure_future(self._app(scope, link.receive, link.send))
        link.task.add_done_callback(lambda _: link.parts.put_nowait(None))
        try:
            head = await link.parts.get()
        except BaseException:
            await link.aclose()
            raise
        if head is None:
            raise httpx2.RemoteProtocolError("the server left without an answer")
        return httpx2.Response(head["status"], headers=head["headers"], stream=link)


class _Link(httpx2.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self.parts: asyncio.Queue[Any] = asyncio.Queue()
        self.task: asyncio.Future[None] | None = None
        self._body: bytes | None = body
        self._closed = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.parts.put_nowait(message)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self.parts.get()) is not None:
            if part["body"]:
                yield part["body"]
            if not part["more_body"]:
                return
        raise httpx2.RemoteProtocolError("the server closed the connection")

    async def aclose(self) -> None:
        self._closed.set()
        if self.task is not None:
            await asyncio.wait({self.task})
            self.task.cancelled() or self.task.exception()
