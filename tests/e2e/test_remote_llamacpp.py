"""A call whose language model is llama.cpp's own server, in an environment of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
import pytest_asyncio

from loadtest.bench.peers.process import peer_server
from loadtest.bench.peers.settings import SETTINGS, missing
from tests.support.clips import clip, room
from tests.support.remote_model import ENDLESS, LONG_REPLY, PATIENT, STOPPED, check_model, section
from voice_agent.cli.talk import converse
from voice_agent.config import load_config
from voice_agent.events import CallFault, EndReason, Event, ReplyDone, ReplyStatus, ReplyText
from voice_agent.loading import load_stack
from voice_agent.remote import RemoteThinker
from voice_agent.stack import Stack
from voice_agent.trace import Mark

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

MODEL = "smollm2-135m"
SETTING = next(s for s in SETTINGS if s.peer == "llamacpp" and s.file == "shipped")
PROMPT_TOKENS = 20
"""At least, of every prompt here."""
AGENT = 'instructions = "You are a friendly phone agent. Answer in one short sentence."\n'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if why := missing(SETTING, MODEL):
        pytest.skip(f"NOT RUN: {why}")
    server = peer_server(SETTING, MODEL, threads=1, slots=1, context=2048)
    try:
        server.wait_ready()
        yield f"http://127.0.0.1:{server.port}/v1"
    finally:
        server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    agents: Path = tmp_path_factory.mktemp("agents")
    (agents / "default.toml").write_text(AGENT, "utf-8")
    llm = {"backend": "openai", "base_url": url, "model": MODEL, **PATIENT}
    flags = {
        "models.stt": "whisper-tiny.en", "models.voice": "piper-joe", "models.fetch": False,
        "agents_dir": agents, **{f"llm.{k}": v for k, v in llm.items()},
    }  # fmt: skip
    loaded = await load_stack(load_config(None, flags).config)
    await loaded.start()
    yield loaded
    await loaded.close()


async def made(url: str) -> int:
    """Tokens of the only slot's last reply, once it is idle: what it holds less the prompt."""
    async with httpx2.AsyncClient() as client:
        while True:
            (slot,) = (await client.get(url.removesuffix("/v1") + "/slots")).json()
            if not slot["is_processing"]:
                return int(slot["n_prompt_tokens"]) - PROMPT_TOKENS
            await asyncio.sleep(0.05)


async def test_the_protocol(url: str) -> None:
    await check_model(url, MODEL, lambda: made(url))


async def test_a_call(stack: Stack) -> None:
    assert stack.engine is None, "no language model is loaded here"
    talk = await converse(stack, np.concatenate([room(0.5), clip("ps_austen_0870")]))
    assert [e for e in talk.events if isinstance(e, CallFault)] == []
    done = [e for e in talk.events if isinstance(e, ReplyDone)]
    assert done
    assert done[-1].status is ReplyStatus.COMPLETED
    assert done[-1].heard
    trace = talk.traces[-1]
    assert (trace.backend, trace.fallback) == ("primary", "")
    assert trace.prompt_tokens > 20
    assert trace.marks[Mark.FIRST_SOUND] > trace.marks[Mark.LLM_FIRST_TEXT]


async def test_a_hang_up_in_mid_reply_frees_the_server(
    stack: Stack, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = RemoteThinker("far", section(url, MODEL, **ENDLESS), stack.clock)
    monkeypatch.setattr(stack, "thinker", endless)
    events: list[Event] = []
    call = stack.open_call(None, events.append)
    life = asyncio.create_task(call.run())
    call.client.update(max_output_tokens=LONG_REPLY)
    call.client.add_message("user", "Tell me a very long story.")
    call.client.respond()
    while not any(isinstance(e, ReplyText) for e in events):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    call.hang_up(EndReason.CALLER_HUNG_UP)
    await life
    assert await made(url) < STOPPED
    await endless.close()
