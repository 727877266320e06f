"""A call whose language model is another server of ours, through its OpenAI endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest

from tests.support.clips import clip, room
from tests.support.real_server import RealServer, real_server
from tests.support.remote_model import PATIENT, check_model
from voice_agent.cli.talk import converse
from voice_agent.config import load_config
from voice_agent.events import CallFault, ReplyDone, ReplyStatus
from voice_agent.loading import load_stack

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m"
AGENT = 'instructions = "You are a friendly phone agent. Answer in one short sentence."\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with real_server(tmp_path_factory.mktemp("far")) as running:
        yield running


class Meter:
    """Tokens computed and made by the server between two looks, each once it is idle."""

    def __init__(self, server: RealServer) -> None:
        self._client = httpx2.AsyncClient(base_url=server.http)
        self._seen = 0

    async def __call__(self) -> int:
        while True:
            lines = (await self._client.get("/metrics")).text.splitlines()
            now = {n: float(v) for n, v in (x.rsplit(" ", 1) for x in lines if x[:1] != "#")}
            if now["voice_agent_engine_running"] == 0.0:
                total = int(now["voice_agent_engine_tokens_total"])
                made, self._seen = total - self._seen, total
                return made
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self._client.aclose()


async def test_the_protocol(server: RealServer) -> None:
    meter = Meter(server)
    try:
        await check_model(f"{server.http}/v1", MODEL, meter)
    finally:
        await meter.close()


async def test_a_call(server: RealServer, tmp_path: Path) -> None:
    (tmp_path / "default.toml").write_text(AGENT, "utf-8")
    llm = {"backend": "openai", "base_url": f"{server.http}/v1", "model": MODEL, **PATIENT}
    flags = {
        "models.stt": "whisper-tiny.en", "models.voice": "piper-joe", "models.fetch": False,
        "agents_dir": tmp_path, **{f"llm.{k}": v for k, v in llm.items()},
    }  # fmt: skip
    stack = await load_stack(load_config(None, flags).config)
    try:
        await stack.start()
        assert stack.engine is None
        talk = await converse(stack, np.concatenate([room(0.5), clip("ps_goforward")]))
    finally:
        await stack.close()
    assert [e for e in talk.events if isinstance(e, CallFault)] == []
    last = [e for e in talk.events if isinstance(e, ReplyDone)][-1]
    assert last.status is ReplyStatus.COMPLETED
    assert last.heard
    assert (talk.traces[-1].backend, talk.traces[-1].fallback) == ("primary", "")
    assert talk.traces[-1].cached_tokens > 0, "the warm-up filled the endpoint's cache"
