"""`python -m tests.support.server_process`: a server with scripted calls in a process of its own,
to be killed. Its calls are carried by media workers, as a real server's are.

    --sip PORT RTP   telephone calls too
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from gateway.config import EchoModes
from gateway.media.echo import EchoMode
from gateway.sip.settings import SipSettings
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving
from voice_agent import logs

ROOT = Path(__file__).parents[2]
MODULE = "tests.support.server_process"


@dataclass
class Core:
    """The process whose end is tested."""

    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the core itself, whatever it was started by."""
        started = psutil.Process(self.process.pid)
        own = [p for p in (started, *started.children(recursive=True)) if MODULE in p.cmdline()]
        return own[-1].pid

    @property
    def workers(self) -> list[int]:
        """Of its media workers, while it lives."""
        return [child.pid for child in psutil.Process(self.pid).children()]


@contextmanager
def core(*args: str, by: Sequence[str] = (sys.executable,)) -> Iterator[Core]:
    """by: what runs Python, with its own arguments."""
    process = subprocess.Popen(
        [*by, "-m", MODULE, *args],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    give_up = threading.Timer(90, process.kill)
    give_up.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        yield Core(process, json.loads(line)["port"])
    finally:
        give_up.cancel()
        process.kill()
        process.communicate(timeout=30)


async def main(args: list[str]) -> None:
    sip = None
    if "--sip" in args:
        port, rtp = (int(n) for n in args[args.index("--sip") + 1 :][:2])
        sip = SipSettings(port=port, rtp_ports=(rtp, rtp + 15))
    stack = FakeStack(greeting="so " * 400, reply_s=60.0)
    echo = EchoModes(telephone=EchoMode.OFF)
    async with serving(stack, media_workers=1, sip=sip, echo=echo) as server:
        print(json.dumps({"port": server.port}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    logs.setup("json")
    asyncio.run(main(sys.argv[1:]))
