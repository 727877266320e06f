"""Refusals, limits and departures."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.support.fake_call import FakeStack
from tests.support.http_api import MODEL, Api, http_api
from tests.support.live_server import serving

pytestmark = pytest.mark.unit

ASK = [{"role": "user", "content": "x"}]
KEYS = ("the first key, of some length", "the second key, of some length")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": ASK, **more}


BAD: list[tuple[str, Any, int, str | None, str | None]] = [
    ("chat/completions", "no json", 400, "invalid_value", None),
    ("chat/completions", {"messages": ASK}, 400, "missing_required_parameter", "model"),
    ("chat/completions", chat(messages=[]), 400, "invalid_value", "messages"),
    ("chat/completions", chat(messages=[{"role": "user"}]), 400, "invalid_value", "messages.0"),
    ("chat/completions", chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
     400, "invalid_value", None),
    ("chat/completions", chat(modl=1), 400, "unknown_parameter", "modl"),
    ("chat/completions", chat(functions=[]), 400, "unknown_parameter", "functions"),
    ("chat/completions", chat(temperature=3), 400, "invalid_value", "temperature"),
    ("chat/completions", chat(n=17), 400, "invalid_value", "n"),
    ("chat/completions", chat(top_logprobs=3), 400, "invalid_value", None),
    ("chat/completions", chat(stop=["a"] * 17), 400, None, None),
    ("chat/completions", chat(logit_bias={"99999": 1}), 400, None, None),
    ("chat/completions", chat(model="gpt-9"), 404, "model_not_found", "model"),
    ("chat/completions", chat(tool_choice="required"), 400, "invalid_value", None),
    ("chat/completions", chat(tools=[TOOL, TOOL]), 400, "invalid_value", None),
    ("chat/completions", chat(tools=[TOOL], tool_choice={
        "type": "function", "function": {"name": "g"}}), 400, "invalid_value", None),
    ("chat/completions", chat(messages=[{"role": "user", "content": "x" * 2000}]), 400,
     "context_length_exceeded", "messages"),
    ("chat/completions", chat(messages=[{"role": "user", "content": "x" * 100_000}]), 400,
     "context_length_exceeded", "messages"),
    ("completions", {"model": MODEL, "prompt": "x" * 100_000}, 400, "context_length_exceeded",
     "prompt"),
    ("chat/completions", chat(response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "nonsense"}}}), 400, None, None),
    ("chat/completions", chat(response_format={"type": "json_object"},
                              structured_outputs={"regex": "a"}), 400, None, "structured_outputs"),
    ("chat/completions", chat(structured_outputs={"regex": "("}), 400, None, None),
    ("chat/completions", chat(structured_outputs={"regex": "a", "json": {}}), 400, "invalid_value",
     "structured_outputs"),
    ("completions", {"model": MODEL, "prompt": "x", "echo": True, "logprobs": 1},
     400, None, "echo"),
    ("completions", {"model": MODEL, "prompt": []}, 400, None, "prompt"),
    ("completions", {"model": MODEL, "prompt": ""}, 400, None, None),
    ("completions", {"model": MODEL, "prompt": ["x"] * 9, "n": 2}, 400, None, "prompt"),
    ("completions", {"model": MODEL, "prompt": [99999]}, 400, None, None),
    ("completions", {"model": MODEL, "prompt": "x", "suffix": "y"},
     400, "unknown_parameter", "suffix"),
    ("chat/completions", chat(messages=[{"role": "user", "content": "x" * (1 << 20)}]), 413,
     "request_too_large", None),
    ("embeddings", {}, 404, "unknown_url", None),
]  # fmt: skip


async def test_what_is_wrong_is_said_in_openais_shape() -> None:
    async with http_api(lambda prompt: "x") as api, httpx.AsyncClient() as client:
        for path, body, status, code, param in BAD:
            content = body if isinstance(body, str) else json.dumps(body)
            answer = await client.post(f"{api.server.url}/v1/{path}", content=content)
            what = (path, content[:90], answer.text[:300])
            assert answer.status_code == status, what
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}, what
            assert (error["code"], error["type"]) == (code, "invalid_request_error"), what
            assert param is None or error["param"].startswith(param), what
            assert error["message"], what
        assert api.server.gateway.metrics.http_requests.labels("chat", "400")._value.get() > 5


async def test_a_stream_that_can_not_begin_is_a_status_too() -> None:
    async with http_api(lambda prompt: "x") as api:
        bad = {"structured_outputs": {"regex": "("}}
        with pytest.raises(openai.BadRequestError, match="unclosed"):
            await api.client.chat.completions.create(
                model=MODEL, messages=ASK, stream=True, extra_body=bad
            )


async def test_models() -> None:
    async with http_api(lambda prompt: "x") as api:
        assert [m.id async for m in await api.client.models.list()] == [MODEL]
        assert (await api.client.models.retrieve(MODEL)).owned_by == "voice-agent"
        with pytest.raises(openai.NotFoundError, match="not served"):
            await api.client.models.retrieve("other/model")
    async with serving(FakeStack()) as server, httpx.AsyncClient() as client:
        assert (await client.get(f"{server.url}/v1/models")).json()["data"] == []
        none = await client.post(f"{server.url}/v1/chat/completions", json=chat())
        assert none.status_code == 404


async def test_key_host_and_origin() -> None:
    async with http_api(lambda prompt: "x", api_keys=KEYS) as api:
        assert (await api.client.chat.completions.create(**chat())).choices
        stranger = AsyncOpenAI(api_key="unknown", base_url=f"{api.server.url}/v1", max_retries=0)
        async with stranger:
            with pytest.raises(openai.AuthenticationError) as caught:
                await stranger.chat.completions.create(**chat())
        assert caught.value.code == "invalid_api_key"
        assert caught.value.type == "invalid_request_error"
        async with httpx.AsyncClient() as client:
            for header, status in (
                ({"origin": "http://evil.example"}, 403),
                ({"host": "evil"}, 421),
            ):
                headers = {"authorization": f"Bearer {KEYS[0]}", **header}
                url = f"{api.server.url}/v1/chat/completions"
                answer = await client.post(url, json=chat(), headers=headers)
                assert answer.status_code == status
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_each_key_is_a_tenant_with_its_own_cache_and_its_own_share() -> None:
    async with http_api(lambda prompt: "ok", api_keys=KEYS, max_http_replies=2) as api:
        other = AsyncOpenAI(api_key=KEYS[1], base_url=f"{api.server.url}/v1", max_retries=0)

        async def cached(client: AsyncOpenAI) -> int:
            done = await client.chat.completions.create(**chat())
            return int(done.usage.prompt_tokens_details.cached_tokens)

        async with other:
            assert [await cached(api.client), await cached(other)] == [0, 0]
            assert min(await cached(api.client), await cached(other)) > 10
            api.runner.gate.clear()
            waiting = [asyncio.create_task(cached(api.client)) for _ in range(2)]
            await api.until(lambda: api.engine._n_open == 2)
            with pytest.raises(openai.RateLimitError) as caught:
                await cached(api.client)
            assert int(caught.value.response.headers["retry-after"]) > 0
            assert "http_replies_open 2.0" in api.server.gateway.metrics.render().decode()
            theirs = asyncio.create_task(cached(other))
            await asyncio.sleep(0.05)
            api.runner.gate.set()
            await asyncio.gather(*waiting, theirs)
            await cached(api.client)


async def test_loading_draining_and_a_full_engine() -> None:
    async with http_api(lambda prompt: "ok", engine_options={"max_requests": 1}) as api:
        create = api.client.chat.completions.create
        api.stack.ready = False
        with pytest.raises(openai.InternalServerError) as caught:
            await create(**chat())
        assert (caught.value.status_code, caught.value.code) == (503, "loading")
        assert int(caught.value.response.headers["retry-after"]) > 0
        api.stack.ready = True
        with pytest.raises(openai.InternalServerError) as caught:
            await create(**chat(n=2))  # the first of the two is given up
        assert (caught.value.status_code, caught.value.code) == (503, "engine_overloaded")
        await api.until(lambda: api.engine._n_open == 0)
        assert (await create(**chat())).choices
        api.server.gateway.admission.draining = True
        with pytest.raises(openai.InternalServerError) as caught:
            await create(**chat())
        assert caught.value.code == "shutting_down"


async def test_a_request_that_never_fits_is_not_to_be_tried_again() -> None:
    async with http_api(lambda prompt: "ok", engine_options={"n_blocks": 20}) as api:
        with pytest.raises(openai.BadRequestError) as caught:
            await api.client.chat.completions.create(**chat(max_tokens=1000))
        assert caught.value.code == "context_length_exceeded"


async def leaves(api: Api, *, stream: bool) -> None:
    """Opens a long reply and closes the connection in the middle of it."""
    async with httpx.AsyncClient() as client:
        body = chat(stream=stream, max_tokens=900)
        request = client.build_request("POST", f"{api.server.url}/v1/chat/completions", json=body)
        sending = asyncio.create_task(client.send(request, stream=True))
        await api.until(lambda: api.engine.stats().tokens_total > 5)
        if stream:
            await (await sending).aclose()
        else:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_who_leaves_costs_nothing_more(stream: bool) -> None:
    async with http_api(lambda prompt: "la " * 400) as api:
        api.runner.pause_s = 0.001
        await leaves(api, stream=stream)
        await api.until(lambda: api.engine.stats().aborted_total == 1)
        stats = api.engine.stats()
        assert (stats.kv_blocks_held, stats.running, stats.waiting) == (0, 0, 0)
        assert stats.tokens_total < 600
        await api.until(lambda: 'status="499"' in api.server.gateway.metrics.render().decode())
        api.runner.pause_s = 0.0
        assert (await api.client.chat.completions.create(**chat(max_tokens=3))).choices


async def test_who_leaves_a_queue_is_not_computed() -> None:
    async with http_api(lambda prompt: "ok") as api:
        api.runner.gate.clear()
        waiting = [asyncio.create_task(api.client.chat.completions.create(**chat())) for _ in "ab"]
        await api.until(lambda: api.engine._n_open == 2)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        await api.until(lambda: bool(api.engine._loop._inbox.aborts))
        api.runner.gate.set()
        assert (await waiting[1]).choices
        assert api.engine.stats().aborted_total == 1


async def test_requests_are_background_work_unless_told_otherwise() -> None:
    async with http_api(lambda prompt: "ok") as api:
        api.runner.gate.clear()
        tiers = [None, "flex", "priority"]
        waiting = []
        for n, tier in enumerate(tiers, 1):
            more = {"service_tier": tier} if tier else {}
            create = api.client.chat.completions.create(**chat(**more))
            waiting.append(asyncio.create_task(create))
            await api.until(lambda n=n: api.engine._n_open == n)
        api.runner.gate.set()
        done = await asyncio.gather(*waiting)
        assert [reply.service_tier for reply in done] == ["flex", "flex", "priority"]


async def test_live_work_goes_first() -> None:
    order: list[str] = []
    async with http_api(lambda prompt: "ok", engine_options={"max_num_seqs": 1}) as api:
        api.runner.gate.clear()

        async def one(name: str, **more: Any) -> None:
            await api.client.chat.completions.create(**chat(**more))
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for i, (name, more) in enumerate(
                [("first", {}), ("second", {}), ("live", {"service_tier": "priority"})]
            ):
                group.create_task(one(name, **more))
                await api.until(lambda i=i: api.engine._n_open == i + 1)
            api.runner.gate.set()
    assert order[0] == "live"


async def test_an_engine_that_breaks_in_the_middle_of_a_stream() -> None:
    async with http_api(lambda prompt: "la " * 40) as api:
        stream = await api.client.chat.completions.create(**chat(stream=True))
        api.runner._logits = None  # type: ignore[assignment]
        with pytest.raises(openai.APIError, match="engine failed"):
            async for _ in stream:
                pass
        whole = api.client.chat.completions.create(**chat())
        with pytest.raises(openai.InternalServerError):
            await whole
