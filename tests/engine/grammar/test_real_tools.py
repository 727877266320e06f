"""Qwen2.5 calls a tool of its own accord, told by its own template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.client import Engine, FinishReason
from engine.config import EngineConfig
from engine.sampling import SamplingParams
from engine.text.tool_calls import CallArguments, CallBegins, ToolCallReader
from engine.text.tools import reply_grammar

pytestmark = pytest.mark.model

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def engine(qwen_path: Path) -> Iterator[Engine]:
    engine = Engine.load(EngineConfig(qwen_path, kv_bytes=64 << 20, max_model_len=1024))
    engine.start()
    yield engine
    engine.close()


async def test_a_call_and_what_follows_its_result(engine: Engine) -> None:
    grammar = reply_grammar(
        [TOOL], "auto", parallel=True, special=frozenset(engine.tokenizer.special)
    )
    assert grammar is not None  # its tags are tokens
    dialogue = [{"role": "user", "content": "What is the weather in Paris now?"}]
    params = SamplingParams(max_tokens=60, grammar=grammar)
    reply = await engine.submit(engine.chat.prompt(dialogue, [TOOL]), params).collect()
    assert reply.finish is FinishReason.STOP
    reader = ToolCallReader(("get_weather",))
    begins, *arguments = reader.push(reply.text) + reader.finish()
    assert begins == CallBegins(0, "get_weather")
    asked = json.loads("".join(a.text for a in arguments if isinstance(a, CallArguments)))
    assert "Paris" in asked["city"]

    call = {"type": "function", "function": {"name": "get_weather", "arguments": asked}}
    dialogue += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": json.dumps({"sky": "snow", "celsius": -3})},
    ]
    generation = engine.submit(engine.chat.prompt(dialogue, [TOOL]), params)
    told = await asyncio.wait_for(generation.collect(), 60)
    assert "snow" in told.text or "3" in told.text
    assert generation.usage.cached_tokens > 100  # tools and question are there already
