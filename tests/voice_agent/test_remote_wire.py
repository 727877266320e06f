"""Requests and answers of the protocol, without a connection."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.sampling import SamplingParams
from engine.text.tool_calls import CallArguments, CallBegins, ToolCallReader
from voice_agent.context import Prompt, Role, ToolUse
from voice_agent.llm_section import RemoteSection
from voice_agent.remote_wire import (
    CallText,
    Chunk,
    RemoteError,
    chat_body,
    parse_chunk,
    status_error,
    wire_messages,
)
from voice_agent.think import ThoughtUsage

pytestmark = pytest.mark.unit

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "content", "finish_reason", "usage", "error"]),
            inner, max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON.map(json.dumps) | st.text())
@example("[" * 100_000)
@example('{"choices": [{"delta": {"content": ["a", "b"]}}]}')
@example('{"usage": {"prompt_tokens": 1e999}}')
def test_anything_is_a_chunk_or_our_error(data: str) -> None:
    found: Chunk | RemoteError
    try:
        found = parse_chunk("far", data)
    except RemoteError as error:
        found = error
    if isinstance(found, RemoteError):
        assert (found.code, len(found.detail) < 400) == ("VA483", True)
    else:
        found.text.encode()
        assert found.usage is None or isinstance(found.usage, ThoughtUsage)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3}, ThoughtUsage(9, 0, 3)),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": None, "completion_tokens": None},
            ThoughtUsage(9, 0, 0),
        ),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}},
            ThoughtUsage(9, 8, 0),
        ),
        (None, None),
    ],
)
def test_usage(usage: dict[str, Any] | None, expected: ThoughtUsage | None) -> None:
    assert parse_chunk("far", json.dumps({"choices": [], "usage": usage})).usage == expected


def test_half_a_character_is_not_passed_on() -> None:
    assert parse_chunk("far", r'{"choices": [{"delta": {"content": "a\ud83d"}}]}').text == "a�"
    assert parse_chunk("far", r'{"choices": [{"delta": {"content": "\ud83d\ude00"}}]}').text == "😀"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Role.SYSTEM, Role.USER, Role.ASSISTANT]), st.text("ab", max_size=3)
        ),
        max_size=8,
    )
)
def test_merged_roles_alternate_and_no_text_is_lost(messages: list[tuple[Role, str]]) -> None:
    out = wire_messages(messages, {})
    assert all(a["role"] != b["role"] for a, b in itertools.pairwise(out))
    assert "\n".join(m["content"] for m in out) == "\n".join(t for _, t in messages)


def test_extra_fields_win_over_settings() -> None:
    remote = RemoteSection(base_url="http://a/v1", model="m", extra={"temperature": 0.3, "k": [1]})
    body = chat_body(remote, Prompt(((Role.USER, "hi"),), ()), SamplingParams(top_k=5, min_p=0.1))
    assert (body["temperature"], body["k"], body["top_k"], body["min_p"]) == (0.3, [1], 5, 0.1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "no  such\\nmodel", "type": "x"}}', b'{"error": "no such model"}',
        b'{"message": "no such model"}', b'{"detail": "no such model"}', b"no such model",
        b'{"object": "error", "message": "no such model"}',
    ],
)  # fmt: skip
def test_every_servers_error_body_is_read(body: bytes) -> None:
    assert status_error("far", 404, body, "").detail == "HTTP 404 no such model"


@given(st.binary(max_size=200), st.integers(300, 599))
def test_any_error_body_is_short_and_without_the_key(body: bytes, status: int) -> None:
    key = "sk-secret-0123"
    error = status_error("far", status, body + key.encode() + body, key)
    assert key not in error.detail + str(error)
    assert len(error.detail) < 320


def test_tools_and_what_they_gave_are_told_in_the_protocols_own_form() -> None:
    remote = RemoteSection(base_url="http://a/v1", model="m")
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    uses = (ToolUse("c1", "look", '{"a": 1}', "sunny"), ToolUse("c2", "look", "{}", "wet"))
    prompt = Prompt(
        ((Role.USER, "hi"), (Role.ASSISTANT, "Let me see."), (Role.TOOL, "sunny\nwet")),
        (),
        (tool,),
        ((1, uses),),
    )
    body = chat_body(remote, prompt, SamplingParams())
    assert body["tools"] == [tool]
    user, called, *results = body["messages"]
    assert user == {"role": "user", "content": "hi"}
    assert called["content"] == "Let me see."
    assert [c["function"] for c in called["tool_calls"]] == [
        {"name": "look", "arguments": '{"a": 1}'}, {"name": "look", "arguments": "{}"},
    ]  # fmt: skip
    assert results == [
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": "wet"},
    ]


def test_streamed_calls_read_as_a_model_of_ours_would_write_them() -> None:
    text = CallText()
    pieces = [
        [{"index": 0, "id": "x", "function": {"name": "look", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a": '}}],
        [{"index": 0, "function": {"arguments": "1}"}}],
        [{"index": 1, "function": {"name": "now"}}],
    ]
    written = "".join(map(text.push, pieces)) + text.finish()
    reader = ToolCallReader()
    events = [*reader.push(written), *reader.finish()]
    assert [e.name for e in events if isinstance(e, CallBegins)] == ["look", "now"]
    arguments = {0: "", 1: ""}
    for event in events:
        if isinstance(event, CallArguments):
            arguments[event.index] += event.text
    assert arguments == {0: '{"a": 1}', 1: "{}"}
    assert text.finish() == ""
