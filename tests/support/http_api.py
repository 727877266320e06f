"""The HTTP API over a scripted model, and the official client for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from engine.client import Engine
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving
from tests.support.logit_engine import LogitRunner, logit_engine, noise, scripted, tiny_tokenizer
from tests.support.tiny_text import CHATML

MODEL = "tiny"
TAGS = ("<tool_call>", "</tool_call>")
KNOWS_TOOLS = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>{% endif %}" + CHATML
)


@dataclass(frozen=True)
class Api:
    server: Running
    engine: Engine
    runner: LogitRunner
    client: AsyncOpenAI
    stack: FakeStack

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(30_000):  # a busy machine is slow; never asserted, only given up on
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("never came true")


@contextlib.asynccontextmanager
async def http_api(
    reply: Callable[[str], str] | None = None,
    *,
    special: Sequence[str] = (),
    template: str = CHATML,
    engine_options: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Api]:
    """reply: what the model says to a prompt's text; None: noise. settings: the gateway's."""
    tokenizer = tiny_tokenizer(special, template)
    logits = scripted(tokenizer, reply) if reply else noise(tokenizer.vocab_size)
    engine, runner = logit_engine(tokenizer, logits, template=template, **(engine_options or {}))
    stack = FakeStack()
    stack.engine, stack.engine_model = engine, MODEL
    keys = settings.get("api_keys", ("any key",))
    try:
        async with serving(stack, **settings) as server:
            client = AsyncOpenAI(api_key=keys[0], base_url=f"{server.url}/v1", max_retries=0)
            async with client:
                yield Api(server, engine, runner, client, stack)
    finally:
        runner.gate.set()
        await asyncio.to_thread(engine.close)
        engine._loop.check()
        stats = engine.stats()
        assert (stats.kv_blocks_held, stats.integrity_failures_total) == (0, 0)
