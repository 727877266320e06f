"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from engine.client import Delta, Engine, FinishReason
from engine.errors import EngineError
from engine.sampling import SamplingParams
from engine.text.tool_calls import CallArguments, CallBegins, Content, Event, ToolCallReader

from .answer import Parts, Whole
from .door import Door
from .errors import ApiError, of_engine
from .logprobs import of_chat
from .replies import Replies, Totals
from .settings import chat_grammar, sampling, tools_for_reply
from .wire import ChatRequest, text_of

MOST_CHARS_A_TOKEN = 32
"""More than any prompt's mean: only blanks come near."""


async def chat(door: Door, request: ChatRequest, tenant: str) -> Parts:
    """A chat completion, whole or as chunks. Raises ApiError."""
    engine = door.engine(request.model)
    n = request.n or 1
    with door.room(tenant, n):
        # a long prompt takes a while to read: not on the loop that paces live calls
        prompt, params = await asyncio.to_thread(_prepare, engine, request)
        live = request.service_tier == "priority"
        with Replies(engine, [prompt], n, params, tenant=tenant, live=live) as replies:
            answer = ChatAnswer(request, engine)
            async with aclosing(replies.deltas()) as deltas:
                async for index, delta in deltas:
                    chunk = answer.add(index, delta)
                    if request.stream:
                        yield chunk
            if not request.stream:
                yield Whole(answer.whole(replies.totals))
            elif request.wants_usage:
                yield answer.usage_chunk(replies.totals)


def _prepare(engine: Engine, request: ChatRequest) -> tuple[list[int], SamplingParams]:
    check_length(engine, sum(len(text_of(m.content)) for m in request.messages), "messages")
    messages = [message.for_template() for message in request.messages]
    told = () if request.tool_choice == "none" else request.tools or ()
    try:
        prompt = engine.chat.prompt(messages, [tool.for_template() for tool in told])
        params = sampling(
            request,
            max_tokens=request.max_completion_tokens or request.max_tokens,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            grammar=chat_grammar(request, frozenset(engine.tokenizer.special)),
        )
    except EngineError as error:
        raise of_engine(error) from None
    return fits(engine, prompt, "messages"), params


def check_length(engine: Engine, n_chars: int, param: str) -> None:
    """Raises ApiError for a text that is too long whatever its tokens are, before it is read."""
    if n_chars > MOST_CHARS_A_TOKEN * engine.max_model_len:
        message = (
            f"This model's context has {engine.max_model_len} tokens; the {param} have {n_chars} "
            "characters."
        )
        raise ApiError(400, message, code="context_length_exceeded", param=param)


def fits(engine: Engine, prompt: Sequence[int], param: str) -> list[int]:
    """The prompt; raises ApiError if it leaves no room for a reply."""
    if len(prompt) >= engine.max_model_len:
        message = (
            f"This model's context has {engine.max_model_len} tokens; the {param} "
            f"have {len(prompt)}, which leaves none for a reply."
        )
        raise ApiError(400, message, code="context_length_exceeded", param=param)
    return list(prompt)


class _Choice:
    """One reply as it grows."""

    def __init__(self, reader: ToolCallReader | None) -> None:
        self.reader = reader
        self.begun = False
        self.content: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.deltas: list[Delta] = []
        self.finish: str | None = None

    def events(self, delta: Delta) -> list[Event]:
        if self.reader is None:
            return [Content(delta.text)] if delta.text else []
        events = self.reader.push(delta.text) if delta.text else []
        return events + (self.reader.finish() if delta.finish is not None else [])

    def take(self, event: Event) -> dict[str, Any]:
        """Keeps an event; returns it as a delta of the wire."""
        match event:
            case Content(text):
                self.content.append(text)
                return {"content": text}
            case CallBegins(index, name):
                function = {"name": name, "arguments": ""}
                call = {"id": f"call_{secrets.token_hex(12)}", "type": "function",
                        "function": function}  # fmt: skip
                self.calls.append(call)
                return {"tool_calls": [{"index": index, **call, "function": dict(function)}]}
            case CallArguments(index, text):
                self.calls[index]["function"]["arguments"] += text
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def ended(self, finish: FinishReason) -> str:
        if finish is FinishReason.LENGTH:
            return "length"
        return "tool_calls" if self.calls else "stop"


class ChatAnswer:
    """Turns deltas into the chunks of one completion, and into its whole."""

    def __init__(self, request: ChatRequest, engine: Engine) -> None:
        self._request = request
        self._tokenizer = engine.tokenizer
        self._choices = [_Choice(_reader(request)) for _ in range(request.n or 1)]
        self._frame = {
            "id": f"chatcmpl-{secrets.token_hex(14)}",
            "created": int(time.time()),
            "model": request.model,
            "service_tier": "priority" if request.service_tier == "priority" else "flex",
        }

    def add(self, index: int, delta: Delta) -> dict[str, Any]:
        """The chunk of one delta; one choice each."""
        choice = self._choices[index]
        out: dict[str, Any] = {}
        if not choice.begun:
            choice.begun, out = True, {"role": "assistant", "content": ""}
        for event in choice.events(delta):
            _merge(out, choice.take(event))
        if delta.finish is not None:
            choice.finish = choice.ended(delta.finish)
        logprobs = None
        if self._request.logprobs:
            choice.deltas.append(delta)
            logprobs = {"content": of_chat(self._tokenizer, [delta]), "refusal": None}
        body = {"index": index, "delta": out, "logprobs": logprobs, "finish_reason": choice.finish}
        return self._chunk([body], None)

    def usage_chunk(self, totals: Totals) -> dict[str, Any]:
        return self._chunk([], totals)

    def _chunk(self, choices: list[dict[str, Any]], totals: Totals | None) -> dict[str, Any]:
        chunk = {**self._frame, "object": "chat.completion.chunk", "choices": choices}
        if self._request.wants_usage:
            chunk["usage"] = totals.body() if totals else None
        return chunk

    def whole(self, totals: Totals) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": (
                    {"content": of_chat(self._tokenizer, choice.deltas), "refusal": None}
                    if self._request.logprobs
                    else None
                ),
                "finish_reason": choice.finish,
            }
            for index, choice in enumerate(self._choices)
        ]
        return {
            **self._frame, "object": "chat.completion", "choices": choices, "usage": totals.body()
        }  # fmt: skip


def _reader(request: ChatRequest) -> ToolCallReader | None:
    tools = tools_for_reply(request)
    if not tools:
        return None
    # an answer in JSON could look like a call that lacks its tags
    free = request.response_format is None and request.structured_outputs is None
    return ToolCallReader({t["function"]["name"] for t in tools} if free else ())


def _message(choice: _Choice) -> dict[str, Any]:
    content = "".join(choice.content)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if choice.calls:
        message |= {"content": content or None, "tool_calls": choice.calls}
    return message


def _merge(out: dict[str, Any], new: dict[str, Any]) -> None:
    """Several events of one step in one chunk."""
    if "content" in new:
        out["content"] = out.get("content", "") + new["content"]
    if "tool_calls" in new:
        out.setdefault("tool_calls", []).extend(new["tool_calls"])
