"""What goes to an OpenAI-compatible endpoint and what its answers mean. Pure.

Chat Completions, streamed as server-sent events:
https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.sampling import SamplingParams
from engine.text.tools import CLOSE, OPEN

from .context import Prompt, Role, ToolUse
from .errors import InternalError
from .llm_section import RemoteSection
from .think import ThoughtUsage

DONE = "[DONE]"
DETAIL_CHARS = 300


class RemoteError(InternalError):
    """A remote model gave no answer, or not all of it.

    The message names the backend only: callers may see it. detail: the endpoint's own words, for
    operators; they may quote the prompt. of_request: another request may well be answered.
    """

    def __init__(
        self, message: str, *, code: str, detail: str = "", of_request: bool = False
    ) -> None:
        super().__init__(message, code=code)
        self.detail = detail
        self.of_request = of_request


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of the stream. finish: the endpoint's own word. calls: its `tool_calls`."""

    text: str
    finish: str | None
    usage: ThoughtUsage | None
    calls: tuple[Mapping[str, Any], ...] = ()


def chat_body(remote: RemoteSection, prompt: Prompt, sampling: SamplingParams) -> dict[str, Any]:
    """The request. Settings at rest are left out: hosted models refuse fields they do not know."""
    body: dict[str, Any] = {
        "model": remote.model,
        "messages": wire_messages(prompt.messages, dict(prompt.uses)),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        remote.limit_field: sampling.max_tokens,
    }
    if prompt.tools:
        body["tools"] = [dict(tool) for tool in prompt.tools]
        if not prompt.may_call:
            body["tool_choice"] = "none"
    for name, at_rest in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0), ("seed", None)):
        value = getattr(sampling, name)
        if value != at_rest:
            body[name] = value
    return body | remote.extra


def wire_messages(
    messages: Iterable[tuple[Role, str]], uses: Mapping[int, tuple[ToolUse, ...]]
) -> list[dict[str, Any]]:
    """Neighbours of one role become one message: many chat templates want roles to alternate.

    uses: the calls of the messages at these indices; the message after such a one is their results.
    """
    out: list[dict[str, Any]] = []
    called: tuple[ToolUse, ...] = ()
    for n, (role, text) in enumerate(messages):
        if role is Role.TOOL:
            out += [{"role": "tool", "tool_call_id": u.id, "content": u.result} for u in called]
        elif called := uses.get(n, ()):
            out.append(
                {"role": "assistant", "content": text or None, "tool_calls": [*map(_call, called)]}
            )
        elif out and out[-1]["role"] == role.value and "tool_calls" not in out[-1]:
            out[-1]["content"] += f"\n{text}"
        else:
            out.append({"role": role.value, "content": text})
    return out


def _call(use: ToolUse) -> dict[str, Any]:
    function = {"name": use.name, "arguments": use.arguments}
    return {"id": use.id, "type": "function", "function": function}


class CallText:
    """Streamed calls of tools as the text a model of ours would write for them.

    https://platform.openai.com/docs/api-reference/chat-streaming
    """

    def __init__(self) -> None:
        self._open = False
        self._index: object = None
        self._empty = True

    def push(self, deltas: Iterable[Mapping[str, Any]]) -> str:
        """The next piece of text. deltas: `tool_calls` of one event."""
        text = ""
        for delta in deltas:
            function = delta.get("function") or {}
            index = delta.get("index", 0)
            if not self._open or index != self._index:
                text += self.finish()
                name = json.dumps(str(function.get("name") or ""))
                text += f'{OPEN}\n{{"name": {name}, "arguments": '
                self._open, self._index, self._empty = True, index, True
            arguments = str(function.get("arguments") or "")
            self._empty = self._empty and not arguments.strip()
            text += arguments if not self._empty else ""
        return text

    def finish(self) -> str:
        """What closes the call that is open, if one is."""
        if not self._open:
            return ""
        self._open = False
        return ("{}" if self._empty else "") + f"}}\n{CLOSE}\n"


def parse_chunk(name: str, data: str) -> Chunk:
    """One event's data. Raises RemoteError VA483 for what is no chunk, and for an error event."""
    try:
        body = json.loads(data)
        if error := body.get("error"):
            text = error.get("message", "") if isinstance(error, dict) else str(error)
            raise RemoteError(
                f"the language model {name!r} failed in the middle of its answer",
                code="VA483",
                detail=str(text)[:DETAIL_CHARS],
            )
        choice: dict[str, Any] = next(iter(body.get("choices") or ()), {})
        delta = choice.get("delta") or {}
        calls = tuple(dict(call) for call in delta.get("tool_calls") or ())
        text = _text(delta.get("content"))
        return Chunk(text, choice.get("finish_reason"), _usage(body), calls)
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as e:
        raise RemoteError(
            f"the language model {name!r} sent something that is no answer",
            code="VA483",
            detail=f"{type(e).__name__}: {data[:DETAIL_CHARS]}",
        ) from e


def _text(content: str | None) -> str:
    """Half a surrogate pair, which JSON can carry and nothing else, becomes U+FFFD."""
    return (content or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def finish_of(word: str) -> str:
    """The endpoint's finish reason as the engine calls it: only running out of tokens differs."""
    return "length" if word == "length" else "stop"


def _usage(body: dict[str, Any]) -> ThoughtUsage | None:
    usage = body.get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return ThoughtUsage(
        int(usage.get("prompt_tokens") or 0),
        int(details.get("cached_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
    )


def status_error(name: str, status: int, body: bytes, secret: str) -> RemoteError:
    """What an answer that is not 200 means. body: its beginning."""
    detail = f"HTTP {status} {_message(body, secret)}".strip()
    if status == 429:
        return RemoteError(f"the language model {name!r} is busy", code="VA484", detail=detail)
    if 400 <= status < 500 and status != 408:
        return RemoteError(
            f"the language model {name!r} refused the request (HTTP {status})",
            code="VA480",
            detail=detail,
            of_request=status in (400, 413, 422),
        )
    return RemoteError(
        f"the language model {name!r} failed (HTTP {status})", code="VA483", detail=detail
    )


def _message(body: bytes, secret: str) -> str:
    """An error body's message, whatever shape it has; never our key."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        while isinstance(found, dict):
            found = found.get("error") or found.get("message") or found.get("detail")
        text = found if isinstance(found, str) else text
    except ValueError:
        pass
    if secret:
        text = text.replace(secret, "(key)")
    return " ".join(text.split())[:DETAIL_CHARS]
