"""`POST /v1/completions`: text that goes on."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import aclosing
from typing import Any, cast

from engine.client import Delta, Engine
from engine.errors import EngineError
from engine.sampling import SamplingParams

from .answer import Parts, Whole
from .chat import check_length, fits
from .door import Door
from .errors import ApiError, of_engine
from .logprobs import CompletionLogprobs
from .replies import Replies, Totals
from .settings import sampling, structured
from .wire import MAX_CHOICES, CompletionRequest


async def complete(door: Door, request: CompletionRequest, tenant: str) -> Parts:
    """A text completion, whole or as chunks. Raises ApiError."""
    engine = door.engine(request.model)
    prompts = await asyncio.to_thread(_prompts, engine, request)
    n = request.n or 1
    if len(prompts) * n > MAX_CHOICES:
        message = f"At most {MAX_CHOICES} replies may be asked for at once."
        raise ApiError(400, message, param="prompt")
    with door.room(tenant, len(prompts) * n):
        params = _params(request)
        live = request.service_tier == "priority"
        with Replies(engine, prompts, n, params, tenant=tenant, live=live) as replies:
            answer = TextAnswer(request, engine, prompts)
            async with aclosing(replies.deltas()) as deltas:
                async for index, delta in deltas:
                    chunk = answer.add(index, delta)
                    if request.stream:
                        yield chunk
            if not request.stream:
                yield Whole(answer.whole(replies.totals))
            elif request.wants_usage:
                yield answer.usage_chunk(replies.totals)


def _params(request: CompletionRequest) -> SamplingParams:
    if request.echo and request.logprobs is not None:
        message = "Log probabilities of a prompt are not computed: drop echo or logprobs."
        raise ApiError(400, message, param="echo")
    try:
        return sampling(
            request,
            max_tokens=request.max_tokens,
            logprobs=request.logprobs,
            grammar=structured(request.structured_outputs),
        )
    except EngineError as error:
        raise of_engine(error) from None


def _prompts(engine: Engine, request: CompletionRequest) -> list[list[int]]:
    """Ids of each prompt. In a text, special tokens are read as such."""
    given = request.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = cast("list[str] | list[list[int]]", [given])
    if not given:
        raise ApiError(400, "There is no prompt.", param="prompt")
    return [fits(engine, _ids(engine, one), "prompt") for one in given]


def _ids(engine: Engine, prompt: Any) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    check_length(engine, len(prompt), "prompt")
    tokenizer = engine.tokenizer
    ids = tokenizer.encode(prompt, allow_special=True)
    if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
        ids = [tokenizer.bos, *ids]
    return ids


class TextAnswer:
    """Turns deltas into the chunks of one completion, and into its whole."""

    def __init__(
        self, request: CompletionRequest, engine: Engine, prompts: list[list[int]]
    ) -> None:
        n = request.n or 1
        self._request = request
        echo = [
            engine.tokenizer.decode(p, skip_special=True) if request.echo else "" for p in prompts
        ]
        self._echo = [text for text in echo for _ in range(n)]
        self._texts = list(self._echo)
        self._finish: list[str | None] = [None] * len(self._echo)
        self._logprobs = [CompletionLogprobs(engine.tokenizer) for _ in self._echo]
        self._deltas: list[list[Delta]] = [[] for _ in self._echo]
        self._frame = {
            "id": f"cmpl-{secrets.token_hex(14)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
        }

    def add(self, index: int, delta: Delta) -> dict[str, Any]:
        """The chunk of one delta; the first one of a reply brings the echo along."""
        text, self._echo[index] = self._echo[index] + delta.text, ""
        self._texts[index] += delta.text
        self._finish[index] = delta.finish.value if delta.finish is not None else None
        logprobs = None
        if self._request.logprobs is not None:
            if self._request.stream:
                logprobs = self._logprobs[index].of([delta])
            else:
                self._deltas[index].append(delta)
        return self._body([self._choice(index, text, logprobs)], None)

    def _choice(self, index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "index": index, "text": text, "logprobs": logprobs,
            "finish_reason": self._finish[index],
        }  # fmt: skip

    def usage_chunk(self, totals: Totals) -> dict[str, Any]:
        return self._body([], totals)

    def _body(self, choices: list[dict[str, Any]], totals: Totals | None) -> dict[str, Any]:
        body = {**self._frame, "choices": choices}
        if totals is not None or self._request.wants_usage:
            body["usage"] = totals.body() if totals else None
        return body

    def whole(self, totals: Totals) -> dict[str, Any]:
        asked = self._request.logprobs is not None
        choices = [
            self._choice(i, text, self._logprobs[i].of(self._deltas[i]) if asked else None)
            for i, text in enumerate(self._texts)
        ]
        return self._body(choices, totals)
