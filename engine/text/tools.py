"""Tools in a dialogue: how they are told to a model, and what a reply with calls looks like.

A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form of Qwen2.5, Qwen3 and
Hermes. A model whose template knows no tools, or writes another form, is told the same form in its
instructions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from engine.errors import ModelError, UsageError
from engine.grammar.spec import ONE_LINE, Grammar
from engine.text.template import ChatTemplate

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_CALLS = 8
"""Calls in one reply, where a grammar leads it."""

Tool = Mapping[str, Any]
"""{"type": "function", "function": {"name", "description", "parameters"}}"""


def knows_tools(template: ChatTemplate) -> bool:
    """Whether the template writes tools, and asks for calls in the form that is read here."""
    probe = {"type": "function", "function": {"name": "probe_tool", "parameters": {}}}
    try:
        text = template.write([{"role": "user", "content": "x"}], tools=[probe])
    except ModelError:
        return False
    return "probe_tool" in text and OPEN in text


def spelled_out(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
) -> list[dict[str, Any]]:
    """The dialogue for a template without tools: they, calls and results become plain text."""
    plain: list[dict[str, Any]] = []
    previous = ""
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        calls = message.get("tool_calls") or ()
        if role == "assistant" and calls:
            written = (json.dumps(_call(call), ensure_ascii=False) for call in calls)
            content = "\n".join(
                filter(None, [content, *(f"{OPEN}\n{w}\n{CLOSE}" for w in written)])
            )
        elif role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
            if previous == "tool":
                content = f"{plain.pop()['content']}\n{content}"
        plain.append({"role": role, "content": content})
        previous = message["role"]
    if tools:
        if not plain or plain[0]["role"] != "system":
            plain.insert(0, {"role": "system", "content": ""})
        told = "\n\n".join(filter(None, [plain[0]["content"], _instructions(tools)]))
        plain[0] = {"role": "system", "content": told}
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"name": function["name"], "arguments": function["arguments"]}


def call_text(name: str, arguments: str) -> str:
    """What stands between the tags. arguments: a JSON object as text."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'


def _instructions(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions:\n{listed}\n\nTo call one, answer with its name and "
        f'arguments in this form and say nothing else:\n{OPEN}\n{{"name": "NAME", "arguments": '
        f"{{}}}}\n{CLOSE}"
    )


def reply_grammar(
    tools: Sequence[Tool],
    choice: Literal["auto", "required"],
    *,
    parallel: bool,
    special: frozenset[str],
    answer: Grammar | None = None,
) -> Grammar | None:
    """What a reply that may, or must, call tools has to look like; None: anything.

    special: the model's special tokens; where the two tags are among them, free text and calls
    can't be confused, so that even a call made by choice is led by its schema. answer: what a reply
    without a call must look like; a JSON schema only. parallel: several calls may follow.
    """
    if answer is not None and answer.kind != "json_schema":
        raise UsageError("only a JSON answer can be combined with tools")
    tags_are_tokens = {OPEN, CLOSE} <= special
    if choice == "auto" and answer is None and not tags_are_tokens:
        return None
    opens, closes = (OPEN, CLOSE) if tags_are_tokens else (f'"{OPEN}"', f'"{CLOSE}"')
    more = f'("\\n" call){{0,{MAX_CALLS - 1}}}' if parallel else ""
    lines = [f"calls: call {more}", f'call: {opens} "\\n" ({_any_of(len(tools))}) "\\n" {closes}']
    for i, tool in enumerate(tools):
        function = tool["function"]
        head = json.dumps(f'{{"name": "{function["name"]}", "arguments": ')
        lines += [f'tool_{i}: {head} args_{i} "}}"', f"args_{i}: %json {_schema(function)}"]
    if choice == "required":
        lines.insert(0, "start: calls")
    elif answer is not None:
        lines[:0] = [
            "start: calls | answer",
            f"answer: %json {_with_form(json.loads(answer.text))}",
        ]
    else:
        lines[:0] = ["start: text calls?", "text: /(?s:.*)/"]
    return Grammar("lark", "\n".join(lines))


def _any_of(n_tools: int) -> str:
    return " | ".join(f"tool_{i}" for i in range(n_tools))


def _schema(function: Mapping[str, Any]) -> str:
    parameters = function.get("parameters")
    return _with_form({"type": "object"} if not parameters else {"type": "object"} | parameters)


def _with_form(schema: Any) -> str:
    """A schema as text for `%json`, on one line."""
    shaped = schema if isinstance(schema, dict) else {}
    return json.dumps(shaped | {"x-guidance": ONE_LINE}, ensure_ascii=False)
