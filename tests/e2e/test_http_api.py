"""The HTTP API of the real server with SmolLM2, through clients that know nothing of it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.support.real_server import RealServer

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m"
SYSTEM = {
    "role": "system",
    "content": "You answer the telephone of a small garden centre. " * 14 + "Be brief.",
}
N_AT_ONCE = 16


def ask(text: str) -> list[dict[str, Any]]:
    return [SYSTEM, {"role": "user", "content": text}]


def client_of(server: RealServer) -> AsyncOpenAI:
    return AsyncOpenAI(api_key="any", base_url=f"{server.http}/v1", max_retries=0)


def metric(server: RealServer, name: str) -> float:
    found = re.search(rf"^voice_agent_{name} (\S+)$", server.get("/metrics"), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


async def test_the_official_client(real_server: RealServer) -> None:
    async with client_of(real_server) as client:
        assert [model.id async for model in await client.models.list()] == [MODEL]
        settings: dict[str, Any] = {"model": MODEL, "messages": ask("Do you sell roses?")}
        whole = await client.chat.completions.create(**settings, temperature=0, max_tokens=24)
        text = whole.choices[0].message.content
        assert len(text.split()) > 3
        stream = await client.chat.completions.create(
            **settings, temperature=0, max_tokens=24, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        pieces, usage = [], None
        async for chunk in stream:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage
        assert "".join(pieces) == text
        assert len(pieces) > 8
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(**{**settings, "model": "gpt-4o"})
        begun = await client.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=2
        )
        assert "Paris" in begun.choices[0].text
        assert len(begun.choices[0].logprobs.tokens) == begun.usage.completion_tokens


async def test_schemas_and_calls_are_right_at_the_first_pass(real_server: RealServer) -> None:
    """A model too small to do it by itself."""
    order = {
        "type": "object",
        "properties": {
            "plant": {"enum": ["rose", "tulip", "fern"]},
            "pots": {"type": "integer", "minimum": 1, "maximum": 20},
            "note": {"type": "string", "maxLength": 30},
        },
        "required": ["plant", "pots", "note"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "place_order", "parameters": order}}
    form = {"type": "json_schema", "json_schema": {"name": "order", "schema": order}}
    before = metric(real_server, "engine_grammar_valid_total")

    def check(text: str) -> None:
        value = json.loads(text)
        assert set(value) == {"plant", "pots", "note"}
        assert 1 <= value["pots"] <= 20

    async with client_of(real_server) as client:
        create = client.chat.completions.create
        asked = [ask(f"{n} pots of roses, please.") for n in ("Two", "Five", "Nine", "Twelve")]
        formed = await asyncio.gather(
            *(create(model=MODEL, messages=m, response_format=form, temperature=0.8) for m in asked)
        )
        for reply in formed:
            assert reply.choices[0].finish_reason == "stop"
            check(reply.choices[0].message.content)
        called = await asyncio.gather(
            *(create(model=MODEL, messages=m, tools=[tool], tool_choice="required",
                     parallel_tool_calls=False) for m in asked[:2])
        )  # fmt: skip
        for reply in called:
            assert reply.choices[0].finish_reason == "tool_calls"
            (call,) = reply.choices[0].message.tool_calls
            assert call.function.name == "place_order"
            check(call.function.arguments)
    assert metric(real_server, "engine_grammar_valid_total") - before == 6


async def test_many_at_once_share_what_their_prompts_share(real_server: RealServer) -> None:
    """Half through the official client, half by plain HTTP, as a load harness does it."""
    words = [
        "rose",
        "tulip",
        "fern",
        "ivy",
        "oak",
        "elm",
        "ash",
        "yew",
        "fig",
        "plum",
        "pear",
        "lime",
        "bay",
        "sage",
        "mint",
        "dill",
    ]
    cached: dict[str, int] = {}

    async def official(client: AsyncOpenAI, word: str) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=ask(f"Tell me about {word}."), max_tokens=20, temperature=0,
            stream=True, stream_options={"include_usage": True},
        )  # fmt: skip
        text = ""
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if chunk.usage:
                cached[word] = chunk.usage.prompt_tokens_details.cached_tokens
        return text

    async def plain(client: httpx.AsyncClient, word: str) -> str:
        body = {
            "model": MODEL, "messages": ask(f"Tell me about {word}."), "max_tokens": 20,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        text = ""
        headers = {"authorization": "Bearer any"}
        url = f"{real_server.http}/v1/chat/completions"
        async with client.stream("POST", url, json=body, headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        for line in lines[:-1]:
            chunk = json.loads(line.removeprefix("data: "))
            text += "".join(choice["delta"].get("content", "") for choice in chunk["choices"])
            if chunk["usage"]:
                cached[word] = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        return text

    async with client_of(real_server) as client, httpx.AsyncClient(timeout=120) as http:
        await official(client, words[0])
        texts = await asyncio.gather(
            *(official(client, w) for w in words[: N_AT_ONCE // 2]),
            *(plain(http, w) for w in words[N_AT_ONCE // 2 :]),
        )
        assert all(len(text) > 10 for text in texts)
        assert len(set(texts)) > N_AT_ONCE // 2
        assert len(cached) == N_AT_ONCE
        assert min(cached.values()) > 100  # the instructions, whoever asks
        alone = await official(client, words[3])
        assert alone == texts[3]


async def test_who_leaves_is_cancelled_at_once(real_server: RealServer) -> None:
    aborted = metric(real_server, "engine_aborted_total")
    async with client_of(real_server) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=ask("Tell me a very long story."), max_tokens=2000, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        n_chunks = 0
        async for _ in stream:
            n_chunks += 1
            if n_chunks == 5:
                break
        await stream.close()
        for _ in range(200):
            if metric(real_server, "engine_aborted_total") > aborted:
                break
            await asyncio.sleep(0.02)
    assert metric(real_server, "engine_aborted_total") == aborted + 1
    assert metric(real_server, "engine_running") == 0
    assert metric(real_server, "engine_integrity_failures_total") == 0
    assert metric(real_server, "engine_compiles_after_warmup_total") == 0
