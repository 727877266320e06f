"""Ending and reloading, with calls that are live meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import websockets

from gateway import lifecycle
from gateway.config import GatewayConfig
from gateway.lifecycle import Lifecycle
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving
from voice_agent.agent_file import AgentShelf
from voice_agent.cli.serve import gateway_config
from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.events import EndReason
from voice_agent.vitals import Sign, Vitals

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]


class Stack(FakeStack):
    def __init__(self) -> None:
        super().__init__()
        self.early = SimpleNamespace(limits=None)

    def use_agents(self, names: list[str], shelf: AgentShelf | None = None) -> None:
        if "nobody" in names:
            raise UsageError("there is no agent 'nobody'", code="VA443")
        self.agents = names


@dataclass
class Scene:
    server: Running
    stack: Stack
    life: Lifecycle
    ended: asyncio.Task[None]
    config: Config
    """What is found when it is read again."""
    alive: bool = True

    @property
    def socket(self) -> websockets.connect:
        return websockets.connect(f"{self.server.ws}/v1/realtime?model=default")

    async def over(self) -> None:
        async with asyncio.timeout(10):
            await self.ended


@contextlib.asynccontextmanager
async def scene(monkeypatch: pytest.MonkeyPatch, drain_s: float = 3600.0) -> AsyncIterator[Scene]:
    armed: list[int] = []
    monkeypatch.setattr(lifecycle, "_dead_mans_switch", armed.append)
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.02)
    monkeypatch.setattr(lifecycle.logs, "setup", lambda *chosen: None)  # pytest's handlers stay
    stack, config = Stack(), Config(server={"drain_s": drain_s})
    async with serving(stack) as server:
        found: Scene

        def read() -> Config:
            return found.config

        def door(config: Config) -> GatewayConfig:
            return replace(gateway_config(config, server.port), sip=server.gateway.config.sip)

        life = Lifecycle(
            server.gateway,
            stack,  # type: ignore[arg-type]
            Vitals(lambda: iter([Sign("voice", found.alive, False, 0)])),
            config,
            load=read,
            door_of=door,
        )
        server.gateway.controls = life
        found = Scene(server, stack, life, asyncio.ensure_future(life.run()), config)
        try:
            yield found
        finally:
            found.ended.cancel()
            await asyncio.gather(found.ended, return_exceptions=True)
        assert armed, "nothing ever armed it"


async def closed(socket: websockets.ClientConnection) -> int | None:
    """How the server closes it."""
    with contextlib.suppress(websockets.ConnectionClosedError):
        async for _ in socket:
            pass
    return socket.close_code


async def code_of_a_new_call(s: Scene) -> int | None:
    async with s.socket as socket:
        return await closed(socket)


async def test_live_calls_finish_and_no_new_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as s, httpx.AsyncClient(base_url=s.server.url) as client:
        async with s.socket as socket:
            await socket.recv()
            assert (await client.get("/readyz")).status_code == 200
            s.life._signalled()
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
            assert (await client.get("/healthz")).status_code == 200
            assert await code_of_a_new_call(s) == 1013
            assert s.stack.calls[0].ended is None
            assert not s.ended.done()
        await s.over()
        assert s.stack.calls[0].ended is EndReason.CALLER_HUNG_UP
        assert s.life.fault is None


async def test_the_time_limit_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch, drain_s=0.1) as s, s.socket as socket:
        await socket.recv()
        s.life._signalled()
        assert await closed(socket) == 1001
        await s.over()
        assert s.stack.calls[0].ended is EndReason.SERVER_DRAINING


async def test_a_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real signals, and SIGHUP before."""
    async with scene(monkeypatch) as s, s.socket as socket:
        await socket.recv()
        loop = asyncio.get_running_loop()
        s.life.listen()
        try:
            s.config = Config(server={"max_calls": 5})
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(10):
                while s.server.gateway.admission.max_calls != 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(10):
                while not s.server.gateway.admission.draining:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert s.stack.calls[0].ended is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert await closed(socket) == 1001
            await s.over()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)


async def test_a_signal_after_the_command_goes_on_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a supervisor does it: `voice-agent drain` first, SIGTERM then."""
    async with scene(monkeypatch) as s, httpx.AsyncClient(base_url=s.server.url) as client:
        async with s.socket as socket:
            await socket.recv()
            told = await client.post("/api/ops/drain", json={"seconds": 900})
            assert told.json() == {"draining": True, "live": 1, "seconds": 900.0}
            assert told.status_code == 202
            s.life._signalled()
            await asyncio.sleep(0.1)
            assert s.stack.calls[0].ended is None
            again = await client.post("/api/ops/drain", json={"seconds": 0})
            assert again.json()["seconds"] == 0.0
            assert await closed(socket) == 1001
        await s.over()


@pytest.mark.parametrize("body", ['{"seconds": -1}', '{"seconds": "soon"}', "[]", "{"])
async def test_nonsense_does_not_drain(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    async with scene(monkeypatch) as s, httpx.AsyncClient(base_url=s.server.url) as client:
        told = await client.post("/api/ops/drain", content=body)
        assert (told.status_code, told.json()["error"]["code"]) == (400, "VA491")
        assert not s.server.gateway.admission.draining


async def test_a_dead_stage_ends_every_call_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(monkeypatch) as s, s.socket as socket:
        await socket.recv()
        s.alive = False
        assert await closed(socket) == 1011
        await s.over()
        assert s.stack.calls[0].ended is EndReason.SERVER_ERROR
        assert s.life.fault is not None
        assert str(s.life.fault) == "VA493: the thread of the voice has ended; the server ends"


async def test_new_calls_get_the_new_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "desk.toml").write_text('instructions = "Be brief."\n')
    async with scene(monkeypatch) as s, httpx.AsyncClient(base_url=s.server.url) as client:
        async with s.socket as socket:
            await socket.recv()
            server = {"max_calls": 1, "port": 9999, "allowed_origins": ("https://a.example",)}
            s.config = Config(
                server=server, agents_dir=agents, default_agent="desk", early={"voice": False}
            )
            told = (await client.post("/api/ops/reload")).json()
            assert told == {
                "taken": ["agents_dir", "default_agent", "server.allowed_origins",
                          "server.max_calls", "server.drain_s", "early.voice"],
                "waiting": ["server.port"],
            }  # fmt: skip
            assert await code_of_a_new_call(s) == 1013, "the one line is taken"
            assert s.stack.calls[0].ended is None
        assert s.stack.agents == ["desk", "default"]
        assert s.stack.early.limits.voice is False
        answer = await client.get("/api/agents", headers={"origin": "https://a.example"})
        assert answer.json() == {"agents": ["desk", "default"]}
        count = b'voice_agent_config_reloads_total{outcome="taken"} 1.0'
        assert count in s.server.gateway.metrics.render()


async def test_other_rates_hold_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "k" * 20
    async with scene(monkeypatch) as s:
        held = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=s.server.url, headers=held) as client:
            for per_minute, then in ((3, 429), (0, 200), (1, 429)):
                server = {"api_keys": (key,), "requests_per_minute": per_minute}
                s.config = s.config.model_copy(
                    update={"server": s.config.server.model_copy(update=server)}
                )
                s.life.reload()
                got = [(await client.get("/api/agents")).status_code for _ in range(5)]
                assert got[-1] == then, (per_minute, got)


async def test_a_bad_configuration_changes_nothing_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene(monkeypatch) as s, httpx.AsyncClient(base_url=s.server.url) as client:
        before = s.server.gateway.config
        for bad, code in (
            (Config(default_agent="nobody", server={"max_calls": 7}), "VA443"),
            (Config(server={"api_keys": ("short",), "max_calls": 7}), "VA451"),
        ):
            s.config = bad
            told = await client.post("/api/ops/reload")
            assert (told.status_code, told.json()["error"]["code"]) == (409, code)
            assert told.json()["error"]["message"]
            assert s.server.gateway.config == before
            assert s.server.gateway.admission.max_calls == before.max_calls
            assert list(s.stack.agents) == ["default", "other"]
        count = b'voice_agent_config_reloads_total{outcome="refused"} 2.0'
        assert count in s.server.gateway.metrics.render()


def test_a_process_that_hangs_with_the_interpreters_lock_ends_itself() -> None:
    """As native code does that never gives the lock back: no thread of Python runs any more."""
    script = (
        "import ctypes\n"
        "from gateway.lifecycle import _dead_mans_switch\n"
        "_dead_mans_switch(1)\n"
        "ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the lock\n"
        "print('it went on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=50
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Timeout" in done.stderr
    assert 'File "<string>", line 4' in done.stderr, "where it hung"


async def test_a_server_without_controls_says_so() -> None:
    async with serving(FakeStack()) as server, httpx.AsyncClient(base_url=server.url) as client:
        for what in ("drain", "reload"):
            told = await client.post(f"/api/ops/{what}")
            assert (told.status_code, told.json()["error"]["code"]) == (501, "VA492")
