"""Requests and answers of the protocol, without a connection."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.sampling import SamplingParams
from voice_agent.config import RemoteSection
from voice_agent.context import Role
from voice_agent.remote_wire import Chunk, RemoteError, chat_body, merged, parse_chunk, status_error
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


@given(st.lists(st.tuples(st.sampled_from(list(Role)), st.text("ab", max_size=3)), max_size=8))
def test_merged_roles_alternate_and_no_text_is_lost(messages: list[tuple[Role, str]]) -> None:
    out = merged(messages)
    assert all(a[0] is not b[0] for a, b in itertools.pairwise(out))
    assert "\n".join(t for _, t in out) == "\n".join(t for _, t in messages)


def test_extra_fields_win_over_settings() -> None:
    remote = RemoteSection(base_url="http://a/v1", model="m", extra={"temperature": 0.3, "k": [1]})
    body = chat_body(remote, [(Role.USER, "hi")], SamplingParams(top_k=5, min_p=0.1))
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
