"""The core dies as native code dies: its media workers tell every caller and go, sockets drop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import websockets

from tests.support import sipp as s
from tests.support.rtc_peer import peer
from tests.support.server_process import Core, core
from tests.support.sipp import NEEDS_SIPP, sipp
from tests.support.telephone import free_udp

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def running(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(20):
        while any(map(running, pids)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_live(server: Core, n: int) -> None:
    async with asyncio.timeout(20), httpx.AsyncClient(base_url=server.url) as client:
        while len((await client.get("/api/ops")).json()["live"]) < n:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def closed(socket: websockets.ClientConnection) -> int | None:
    """How it is closed."""
    with contextlib.suppress(websockets.ConnectionClosedError):
        async with asyncio.timeout(30):
            async for _ in socket:
                pass
    return socket.close_code


@NEEDS_SIPP
async def test_every_caller_of_a_core_that_crashed_is_told(tmp_path: Path) -> None:
    """One call of each transport, then SIGSEGV, which is how native code dies."""
    port, rtp = free_udp(2), free_udp(16)
    steps = [*s.answered(), s.asked("BYE"), s.inside_response("200 OK")]
    with core("--sip", str(port), str(rtp)) as server:
        workers = server.workers
        assert len(workers) == 2
        url = f"ws://127.0.0.1:{server.port}/v1/realtime?model=default"
        async with peer() as p, websockets.connect(url) as socket, asyncio.TaskGroup() as group:
            caller = group.create_task(sipp(tmp_path, "crash", steps, port))
            await p.connect(SimpleNamespace(url=server.url))  # type: ignore[arg-type]
            await p.until("heard", 2)
            await socket.recv()
            await until_live(server, 3)
            for worker in workers:  # as a supervisor sends it to all of a service: the core drains
                os.kill(worker, signal.SIGTERM)
            heard = sum(e["type"] == "heard" for e in p.events)
            await p.until("heard", heard + 5)
            assert all(map(running, workers))
            assert not caller.done()

            os.kill(server.pid, signal.SIGSEGV)
            fault = await p.until("error")
            assert (fault["code"], fault["fatal"]) == ("VA494", True)
            assert (await p.until("ended"))["reason"] == "server_error"
            assert await closed(socket) == 1006
            async with asyncio.timeout(20):
                while p.pc.connectionState not in ("closed", "failed"):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        assert caller.result().ok, caller.result().log
        assert server.process.wait(20) == -signal.SIGSEGV
        await until_gone(workers)


PROGRAM = """
import numpy as np
from voice_agent import Agent, serve

class Thinker:
    async def reply(self, messages, tools):
        yield "Boom."

class Voice:
    sample_rate = 8000
    def speak(self, text):
        if "boom" in text.lower():
            raise SystemExit  # ends the thread, as a fault that no handler sees does
        yield np.full(400, 3000, np.int16)

class Recognizer:
    async def transcribe(self, sound):
        return "hello"

serve(
    Agent("Be brief.", name="shop", greeting=GREETING), port=0,
    recognizer=Recognizer(), voice=Voice(), thinker=Thinker(),
)
"""


class Program:
    """A server whose voice dies of the word "boom"; small, so that it starts in a second or two.

    url: "" if it never was ready.
    """

    def __init__(self, folder: Path, greeting: str = "") -> None:
        file = folder / "shop.py"
        file.write_text(f"GREETING = {greeting!r}\n{PROGRAM}", "utf-8")
        env = os.environ | {"PYTHONPATH": str(ROOT), "VOICE_AGENT__MODELS__FETCH": "false"}
        self.process = subprocess.Popen(
            [sys.executable, str(file)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=env, cwd=folder,
        )  # fmt: skip
        self._give_up = threading.Timer(120, self.process.kill)
        self._give_up.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.split()[1].rstrip("/") if line.startswith("ready: http://") else ""

    def call(self) -> websockets.connect:
        return websockets.connect(f"ws{self.url[4:]}/v1/realtime?model=shop")

    async def end(self) -> str:
        """What it has logged, once it is gone."""
        _, log = await asyncio.to_thread(self.process.communicate)
        self._give_up.cancel()
        return log


async def test_a_stage_whose_thread_died_ends_the_server_with_a_failure(tmp_path: Path) -> None:
    program = Program(tmp_path)
    assert program.url, await program.end()
    async with program.call() as bystander, program.call() as socket:
        await bystander.recv()
        await socket.recv()
        await socket.send(json.dumps({"type": "response.create"}))
        assert await closed(bystander) == 1011
    log = await program.end()
    assert program.process.returncode == 1, log
    assert "VA493: the thread of the voice has ended; the server ends" in log


async def test_a_stage_that_dies_while_the_server_starts_ends_it_with_a_failure(
    tmp_path: Path,
) -> None:
    program = Program(tmp_path, greeting="Boom.")
    log = await program.end()
    assert (program.url, program.process.returncode) == ("", 1), log
    assert "VA493: the thread of the voice has ended while the server was starting" in log
