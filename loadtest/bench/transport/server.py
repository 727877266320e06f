"""`python -m loadtest.bench.transport.server KIND WORKERS CLIPS [SIP_PORT RTP_PORTS]`: one subject
of the benchmark.

Prints its port, serves until standard input closes. RTP_PORTS: how many, after the SIP port's two.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from pathlib import Path
from typing import cast

import uvicorn
import uvloop
from starlette.applications import Starlette

from gateway.app import create_app, uvicorn_config
from gateway.call_port import StackPort
from gateway.config import GatewayConfig
from gateway.sip.settings import SipSettings

from .stock import stock_app
from .talker import TalkingStack
from .voice import speech_24k


def main() -> None:
    kind, workers, clips = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    speech = speech_24k(clips)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    if kind == "stock":
        app = stock_app(speech)
        config = uvicorn.Config(app, log_config=None, access_log=False, loop="uvloop")
    else:
        door = GatewayConfig(port=port, media_workers=workers, max_calls=1000, sip=telephone())
        # a TalkingCall has what media needs of a call, and no more
        app = create_app(cast(StackPort, TalkingStack(speech)), door)
        config = uvicorn_config(app, door, loop="uvloop")
    gc.collect()
    gc.freeze()
    uvloop.run(_serve(uvicorn.Server(config), sock, app, port))


def telephone() -> SipSettings | None:
    if len(sys.argv) < 6:
        return None
    port, n = int(sys.argv[4]), int(sys.argv[5])
    return SipSettings(port=port, rtp_ports=(port + 2, port + 1 + n), transports=("udp",))


async def _serve(server: uvicorn.Server, sock: socket.socket, app: Starlette, port: int) -> None:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.serve(sockets=[sock]))
        while not server.started and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True


if __name__ == "__main__":
    main()
