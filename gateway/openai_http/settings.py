"""From a request's parameters to the engine's settings."""

from __future__ import annotations

import json
from typing import Any

from engine.grammar.spec import Grammar
from engine.sampling import SamplingParams
from engine.text.tools import reply_grammar

from .errors import ApiError
from .wire import ChatRequest, Generating, JsonObject, JsonSchema, StructuredOutputs, ToolChoice

DEFAULT_MAX_TOKENS = 512
"""Of a request that names none. The whole context would reserve KV memory that few replies use."""


def sampling(
    request: Generating, *, max_tokens: int | None, logprobs: int | None, grammar: Grammar | None
) -> SamplingParams:
    """Raises engine.errors.UsageError for a setting that cannot be."""
    stop = request.stop
    most = max_tokens or DEFAULT_MAX_TOKENS
    return SamplingParams(
        temperature=_or(request.temperature, 1.0),
        top_k=max(0, request.top_k or 0),
        top_p=_or(request.top_p, 1.0),
        min_p=request.min_p or 0.0,
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=tuple((request.logit_bias or {}).items()),
        seed=request.seed,
        max_tokens=most,
        min_tokens=min(request.min_tokens or 0, most),
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        logprobs=logprobs,
        grammar=grammar,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def structured(asked: StructuredOutputs | None) -> Grammar | None:
    if asked is None:
        return None
    if asked.regex is not None:
        return Grammar("regex", asked.regex)
    if asked.grammar is not None:
        return Grammar("lark", asked.grammar)
    if asked.choice is not None:
        options = " | ".join(json.dumps(text, ensure_ascii=False) for text in asked.choice)
        return Grammar("lark", f"start: {options}")
    return Grammar.json_schema(asked.json_ if asked.json_ is not None else True)


def chat_grammar(request: ChatRequest, special: frozenset[str]) -> Grammar | None:
    """What the reply must look like: its format, or calls of its tools, or either."""
    answer = structured(request.structured_outputs)
    match request.response_format:
        case JsonObject():
            shape: Grammar | None = Grammar.json_schema({"type": "object"})
        case JsonSchema(json_schema=named):
            shape = Grammar.json_schema(named.schema_)
        case _:
            shape = None
    if answer is not None and shape is not None:
        raise ApiError(
            400, "Give response_format or structured_outputs, not both.", param="structured_outputs"
        )
    answer = answer or shape
    choice = request.tool_choice or "auto"
    tools = tools_for_reply(request)
    if not tools:
        return answer
    return reply_grammar(
        tools,
        "auto" if choice == "auto" else "required",
        parallel=request.parallel_tool_calls is not False and choice in ("auto", "required"),
        special=special,
        answer=answer,
    )


def tools_for_reply(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools that the reply may call."""
    choice = request.tool_choice
    tools = [] if choice == "none" else [tool.for_template() for tool in request.tools or ()]
    if isinstance(choice, ToolChoice):
        tools = [t for t in tools if t["function"]["name"] == choice.function.name]
    return tools
