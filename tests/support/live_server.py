"""The gateway on a real port: inside the test's loop, or on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette

from gateway.app import create_app, uvicorn_config
from gateway.config import GatewayConfig
from gateway.gateway import Gateway


@dataclass(frozen=True)
class Running:
    host: str
    port: int
    gateway: Gateway
    app: Starlette

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://{self.host}:{self.port}"


def _prepare(
    stack: Any, serve: dict[str, Any] | None = None, host: str = "127.0.0.1", **settings: Any
) -> tuple[uvicorn.Server, socket.socket, Running]:
    sock = socket.socket()
    sock.bind((host, 0))
    port = sock.getsockname()[1]
    config = GatewayConfig(host=host, port=port, **settings)
    app = create_app(stack, config)
    server = uvicorn.Server(uvicorn_config(app, config, log_level="warning", **(serve or {})))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    app.state.server = server
    return server, sock, Running(host, port, app.state.gateway, app)


@contextlib.asynccontextmanager
async def serving(stack: Any, **settings: Any) -> AsyncIterator[Running]:
    server, sock, running = _prepare(stack, **settings)
    with sock:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[sock]))
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            try:
                yield running
            finally:
                server.should_exit = True


@contextlib.contextmanager
def serving_on_thread(
    stack: Any,
    within: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    **settings: Any,
) -> Iterator[Running]:
    """within: entered by the thread and whenever a socket is made for it."""

    def serve() -> None:
        with within():
            asyncio.run(server.serve(sockets=[sock]))

    with within():
        server, sock, running = _prepare(stack, **settings)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            threading.Event().wait(0.01)
        yield running
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()
