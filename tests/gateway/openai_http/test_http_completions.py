from __future__ import annotations

import pytest

from tests.support.http_api import MODEL, http_api

pytestmark = pytest.mark.unit


async def test_whole_streamed_echoed() -> None:
    async with http_api(lambda prompt: prompt.upper()) as api:
        create = api.client.completions.create
        whole = await create(model=MODEL, prompt="abc", temperature=0)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("ABC", "stop")
        assert whole.usage.prompt_tokens == 3
        echoed = await create(model=MODEL, prompt="abc", echo=True)
        assert echoed.choices[0].text == "abcABC"
        stream = await create(
            model=MODEL,
            prompt="abc",
            stream=True,
            echo=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].text for c in chunks[:-1]) == "abcABC"
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 3
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 2


async def test_several_prompts_as_text_or_ids() -> None:
    async with http_api(lambda prompt: prompt[::-1]) as api:
        create = api.client.completions.create
        encode = api.engine.tokenizer.encode
        for prompt in (["ab", "cd"], [encode("ab"), encode("cd")]):
            done = await create(model=MODEL, prompt=prompt, n=2)
            assert [(c.index, c.text) for c in done.choices] == [
                (0, "ba"), (1, "ba"), (2, "dc"), (3, "dc"),
            ]  # fmt: skip
            assert done.usage.prompt_tokens == 4
        one = await create(model=MODEL, prompt=encode("xy"))
        assert one.choices[0].text == "yx"


async def test_special_tokens_in_a_text_are_read() -> None:
    async with http_api(lambda prompt: str(prompt.count("<|im_start|>"))) as api:
        done = await api.client.completions.create(model=MODEL, prompt="<|im_start|>user\nx")
        assert done.choices[0].text == "1"
        assert done.usage.prompt_tokens == 7


async def test_logprobs_in_parallel_lists() -> None:
    async with http_api(lambda prompt: "hey") as api:
        create = api.client.completions.create
        whole = (await create(model=MODEL, prompt="x", logprobs=2)).choices[0].logprobs
        assert "".join(whole.tokens) == "hey"
        assert whole.text_offset == [0, 2]  # "he" is one token
        assert all(share > -0.1 for share in whole.token_logprobs)
        assert [len(top) for top in whole.top_logprobs] == [2, 2]
        assert whole.top_logprobs[0]["he"] == pytest.approx(whole.token_logprobs[0])
        stream = await create(model=MODEL, prompt="x", logprobs=0, stream=True)
        offsets = [o async for c in stream for o in c.choices[0].logprobs.text_offset]
        assert offsets == [0, 2]
