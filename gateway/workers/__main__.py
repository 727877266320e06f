"""`python -m gateway.workers FD`: a media worker, started by the core on one end of a socket pair.

The first message on it, `start`, says what kind of worker it is and how it is set up; nothing of
that is on the command line, where other users of the machine could read it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from voice_agent import logs
from voice_agent.tidying import tidy

from .link import DOWN, LinkError, Message, decode

Serve: TypeAlias = Callable[[socket.socket, Message], Coroutine[Any, Any, None]]
KINDS = {"webrtc": "gateway.workers.webrtc", "sip": "gateway.sip.worker"}
"""Modules with a coroutine `serve(sock, start)`."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # which a supervisor sends to all of us
        signal.signal(number, signal.SIG_IGN)  # the core drains; its end of the link is the end
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        start = first_message(sock)
    except (LinkError, EOFError):
        return  # the core went away before it began
    logs.setup(*start.get("log", ("text", "INFO")))
    serve: Serve = importlib.import_module(KINDS[start["kind"]]).serve
    sock.setblocking(False)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_tidily(serve(sock, start)))


async def _tidily(work: Coroutine[Any, Any, None]) -> None:
    tidying = asyncio.create_task(tidy())
    try:
        await work
    finally:
        tidying.cancel()


def first_message(sock: socket.socket) -> Message:
    """The first bundle's first message. Blocking; raises LinkError, EOFError."""
    size = int.from_bytes(_exactly(sock, 4), "little")
    _, messages = decode(_exactly(sock, size), DOWN)
    if not messages or messages[0].get("kind") not in KINDS:
        raise LinkError("the first message must be `start`")
    return messages[0]


def _exactly(sock: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = sock.recv(n - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


if __name__ == "__main__":
    main()
