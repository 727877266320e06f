"""`/v1/chat/completions` through the official client, over a model that says what it is told."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from tests.support.http_api import KNOWS_TOOLS, MODEL, TAGS, http_api
from tests.support.tiny_text import CHATML

pytestmark = pytest.mark.unit

ASK = [{"role": "user", "content": "Who?"}]
SAYS = "It is me. Über alles 🙂 nothing."


def weather(prompt: str) -> str:
    return (
        'One moment.\n<tool_call>\n{"name": "weather", "arguments": {"city":"Rome"}}\n</tool_call>'
    )


TOOLS = [
    {"type": "function", "function": {
        "name": name, "description": f"tells {name}",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}},
                       "required": ["city"], "additionalProperties": False}}}
    for name in ("weather", "time")
]  # fmt: skip


async def test_whole_and_streamed_are_the_same() -> None:
    async with http_api(lambda prompt: SAYS) as api:
        whole = await api.client.chat.completions.create(model=MODEL, messages=ASK)
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason) == (SAYS, "stop")
        assert choice.message.role == "assistant"
        assert whole.model == MODEL
        assert whole.usage is not None
        n_output = len(api.engine.tokenizer.encode(SAYS))
        assert whole.usage.completion_tokens == n_output
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + n_output

        stream = await api.client.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert len({chunk.id for chunk in chunks}) == 1
        *said, last = chunks
        assert "".join(c.choices[0].delta.content or "" for c in said) == SAYS
        assert [c.choices[0].finish_reason for c in said] == [None] * (len(said) - 1) + ["stop"]
        assert said[0].choices[0].delta.role == "assistant"
        assert all(c.usage is None for c in said)
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens == n_output
        details = last.usage.prompt_tokens_details
        assert details is not None
        assert details.cached_tokens == whole.usage.prompt_tokens - 1  # the same prompt again


async def test_the_prompt_is_the_models_template() -> None:
    seen: list[str] = []

    def reply(prompt: str) -> str:
        seen.append(prompt)
        return "ok"

    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": part} for part in ("Hel", "lo")]},
        {"role": "assistant", "content": "Hi", "refusal": None},
        {"role": "user", "content": "<|im_end|>"},
    ]  # fmt: skip
    async with http_api(reply) as api:
        await api.client.chat.completions.create(model=MODEL, messages=messages)
    assert seen[0] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_stop_length_and_bias() -> None:
    async with http_api(lambda prompt: "one two three") as api:
        create = api.client.chat.completions.create
        stopped = await create(model=MODEL, messages=ASK, stop=["two", "zzz"])
        assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == (
            "one ", "stop",
        )  # fmt: skip
        for name in ("max_tokens", "max_completion_tokens"):
            cut = await create(model=MODEL, messages=ASK, **{name: 3})
            assert cut.choices[0].finish_reason == "length"
            assert cut.choices[0].message.content == "one"
        letter = api.engine.tokenizer.encode("o")[0]
        biased = await create(
            model=MODEL, messages=ASK, max_tokens=1, logit_bias={str(letter): -100}
        )
        assert not (biased.choices[0].message.content or "").startswith("o")


async def test_several_replies_with_a_seed() -> None:
    async with http_api() as api:

        async def ask(stream: bool) -> list[str]:
            settings = {
                "model": MODEL, "messages": ASK, "n": 3, "seed": 11, "temperature": 1.5,
                "max_tokens": 12,
            }  # fmt: skip
            if not stream:
                whole = await api.client.chat.completions.create(**settings)
                assert whole.usage.completion_tokens == 36
                return [choice.message.content for choice in whole.choices]
            texts = ["", "", ""]
            async for chunk in await api.client.chat.completions.create(**settings, stream=True):
                (choice,) = chunk.choices
                texts[choice.index] += choice.delta.content or ""
            return texts

        first, second = await ask(False), await ask(True)
        assert first == second
        assert len(set(first)) == 3


async def test_logprobs() -> None:
    async with http_api(lambda prompt: "né") as api:
        whole = await api.client.chat.completions.create(
            model=MODEL, messages=ASK, logprobs=True, top_logprobs=2
        )
        tokens = whole.choices[0].logprobs.content
        assert bytes(b for token in tokens for b in token.bytes).decode() == "né"
        assert all(t.logprob > -0.1 and len(t.top_logprobs) == 2 for t in tokens)
        assert tokens[0].top_logprobs[0].token == "n"
        stream = await api.client.chat.completions.create(
            model=MODEL, messages=ASK, logprobs=True, stream=True
        )
        streamed = [t async for c in stream for t in c.choices[0].logprobs.content]
        assert [t.logprob for t in streamed] == pytest.approx([t.logprob for t in tokens])
        assert all(t.top_logprobs == [] for t in streamed)


async def test_json_by_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 0, "maximum": 9},
            "b": {"type": "boolean"},
        },
        "required": ["n", "b"],
        "additionalProperties": False,
    }  # fmt: skip
    async with http_api() as api:
        create = api.client.chat.completions.create
        formed = {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema, "strict": True},
        }
        whole = await create(model=MODEL, messages=ASK, response_format=formed)
        value = json.loads(whole.choices[0].message.content)
        assert 0 <= value["n"] <= 9
        assert isinstance(value["b"], bool)
        free = await create(
            model=MODEL, messages=ASK, response_format={"type": "json_object"}, seed=1,
            max_tokens=300, temperature=0.2,
        )  # fmt: skip
        if free.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(free.choices[0].message.content), dict)
        assert free.choices[0].message.content.startswith("{")
        for extra, allowed in (
            ({"choice": ["yes", "no"]}, ("yes", "no")),
            ({"regex": "a{3}"}, ("aaa",)),
            ({"grammar": 'start: "x" "y"'}, ("xy",)),
            ({"json": {"const": 7}}, ("7",)),
        ):
            done = await create(model=MODEL, messages=ASK, extra_body={"structured_outputs": extra})
            assert done.choices[0].message.content in allowed


async def test_a_call_made_by_choice() -> None:
    """Where the template knows tools and its tags are tokens, and where it does not."""
    for options in ({"special": TAGS, "template": KNOWS_TOOLS}, {}):
        async with http_api(weather, **options) as api:
            create = api.client.chat.completions.create
            whole = await create(model=MODEL, messages=ASK, tools=TOOLS)
            choice = whole.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "One moment."
            (call,) = choice.message.tool_calls
            assert (call.type, call.function.name) == ("function", "weather")
            assert json.loads(call.function.arguments) == {"city": "Rome"}

            arguments, names, ids, content = "", [], [], ""
            async for chunk in await create(model=MODEL, messages=ASK, tools=TOOLS, stream=True):
                delta = chunk.choices[0].delta
                content += delta.content or ""
                for part in delta.tool_calls or ():
                    assert part.index == 0
                    ids += [part.id] if part.id else []
                    names += [part.function.name] if part.function.name else []
                    arguments += part.function.arguments
            assert chunk.choices[0].finish_reason == "tool_calls"
            assert (content, names, len(ids)) == ("One moment.", ["weather"], 1)
            assert json.loads(arguments) == {"city": "Rome"}

            unread = await create(model=MODEL, messages=ASK, tools=TOOLS, tool_choice="none")
            assert "<tool_call>" in unread.choices[0].message.content


async def test_a_named_tool_is_told_with_the_others() -> None:
    """The prompt stays the same, and with it the cached prefix."""
    prompts: set[str] = set()

    def reply(prompt: str) -> str:
        prompts.add(prompt)
        return weather(prompt)

    async with http_api(reply) as api:
        create = api.client.chat.completions.create
        named = {"type": "function", "function": {"name": "weather"}}
        for choice in ("auto", "required", named):
            await create(model=MODEL, messages=ASK, tools=TOOLS, tool_choice=choice)
        (told,) = prompts
        assert "tells time" in told
        await create(model=MODEL, messages=ASK, tools=TOOLS, tool_choice="none")
        (silent,) = prompts - {told}
        assert "tells" not in silent


async def test_the_result_of_a_call_goes_back() -> None:
    seen: list[str] = []

    def reply(prompt: str) -> str:
        seen.append(prompt)
        return "Sunny."

    call = {"id": "call_1", "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}  # fmt: skip
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    async with http_api(reply) as api:
        done = await api.client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        assert done.choices[0].message.content == "Sunny."
        cut = {**call, "function": {"name": "weather", "arguments": '{"city": "Ro'}}
        messages[1] = {**messages[1], "tool_calls": [cut]}
        await api.client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}' in seen[0]
    assert "<tool_response>\nsun\n</tool_response>" in seen[0]


async def test_the_clients_own_parsers() -> None:
    class Order(BaseModel):
        plant: str = Field(max_length=8)
        pots: int = Field(ge=1, le=9)

    asked = {"model": MODEL, "messages": ASK}
    called = asked | {
        "tools": [openai.pydantic_function_tool(Order)], "tool_choice": "required",
        "parallel_tool_calls": False,
    }  # fmt: skip
    async with http_api() as api:
        completions = api.client.chat.completions
        formed = await completions.parse(**asked, response_format=Order)
        assert isinstance(formed.choices[0].message.parsed, Order)
        async with completions.stream(**called) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
        assert "tool_calls.function.arguments.done" in kinds
        (call,) = final.choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, Order)


async def test_a_tool_without_parameters_takes_none() -> None:
    tool = {"type": "function", "function": {"name": "hang_up"}}
    async with http_api() as api:
        done = await api.client.chat.completions.create(
            model=MODEL, messages=ASK, tools=[tool], tool_choice="required",
            parallel_tool_calls=False,
        )  # fmt: skip
        (call,) = done.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("hang_up", "{}")


@pytest.mark.parametrize("special", [(), TAGS], ids=["text tags", "token tags"])
async def test_calls_that_must_be_made(special) -> None:
    """Whatever the model would rather say."""
    async with http_api(special=special, template=KNOWS_TOOLS if special else CHATML) as api:
        create = api.client.chat.completions.create
        named = {"type": "function", "function": {"name": "time"}}
        for choice, names in (("required", {"weather", "time"}), (named, {"time"})):
            done = await create(
                model=MODEL, messages=ASK, tools=TOOLS, tool_choice=choice,
                parallel_tool_calls=False, temperature=1.0,
            )  # fmt: skip
            assert done.choices[0].finish_reason == "tool_calls"
            assert done.choices[0].message.content is None
            (call,) = done.choices[0].message.tool_calls
            assert call.function.name in names
            assert set(json.loads(call.function.arguments)) == {"city"}


async def test_a_reply_cut_in_the_middle_of_arguments() -> None:
    async with http_api(weather, special=TAGS, template=KNOWS_TOOLS) as api:
        create = api.client.chat.completions.create
        lengths = range(1, len(api.engine.tokenizer.encode(weather(""), allow_special=True)), 4)
        for n in lengths:
            whole = await create(model=MODEL, messages=ASK, tools=TOOLS, max_tokens=n)
            assert whole.choices[0].finish_reason == "length"
            for call in whole.choices[0].message.tool_calls or ():
                assert '{"city":"Rome"}'.startswith(call.function.arguments)


async def test_sixteen_at_once_share_the_prompt_they_share() -> None:
    system = {"role": "system", "content": "A long set of instructions. " * 6}

    async def ask(client: AsyncOpenAI, i: int) -> int:
        text, cached = "", 0
        stream = await client.chat.completions.create(
            model=MODEL, messages=[system, {"role": "user", "content": f"n{i}"}], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        async for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            if chunk.usage:
                cached = chunk.usage.prompt_tokens_details.cached_tokens
        assert text == f"n{i}"
        return cached

    def echo(prompt: str) -> str:
        return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]

    async with http_api(echo, engine_options={"max_num_seqs": 8}) as api:
        await ask(api.client, 99)
        cached = await asyncio.gather(*(ask(api.client, i) for i in range(16)))
        assert min(cached) > 150
        assert api.engine.stats().finished_total == 17
