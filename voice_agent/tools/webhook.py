"""A tool whose work an HTTP endpoint does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx2

from voice_agent.errors import UsageError

from .base import Tool, ToolFailed
from .settings import ToolsSection, Webhook

if TYPE_CHECKING:
    from voice_agent.agent import Call

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def webhook(name: str, hook: Webhook, tools: ToolsSection, client: httpx2.AsyncClient) -> Tool:
    """POST sends `{"tool", "call", "arguments"}` as JSON, GET the arguments as a query.

    What comes back, of any type, is told to the model up to `max_chars`; a status other than 2xx is
    a failure. Raises UsageError VA445 for a header whose variable is not set.
    """
    headers = with_environment(hook.headers, f"the tool {name!r}")

    async def run(arguments: dict[str, Any], call: Call) -> str:
        if hook.method == "GET":
            query = httpx2.URL(hook.url).copy_merge_params(arguments)
            request = client.build_request("GET", query, headers=headers)
        else:
            body = {"tool": name, "call": call.id, "arguments": arguments}
            request = client.build_request("POST", hook.url, json=body, headers=headers)
        try:
            return await _answer(client, request, tools.max_chars)
        except (httpx2.RequestError, TimeoutError) as error:
            raise ToolFailed("its server cannot be reached") from error

    return Tool(
        name,
        hook.description,
        hook.parameters,
        run,
        read_only=hook.read_only,
        timeout_s=hook.timeout_s or tools.timeout_s,
        on_interrupt=hook.on_interrupt,
        max_chars=tools.max_chars,
    )


async def _answer(client: httpx2.AsyncClient, request: httpx2.Request, max_chars: int) -> str:
    """The beginning of the answer: the rest is never read."""
    response = await client.send(request, stream=True)
    try:
        if not 200 <= response.status_code < 300:
            raise ToolFailed(f"its server answered with status {response.status_code}")
        body = b""
        async for part in response.aiter_bytes():
            body += part
            if len(body) > 4 * max_chars:  # as many characters, whatever they are
                break
        return body[: 4 * max_chars + 1].decode("utf-8", "replace")
    finally:
        await response.aclose()


def with_environment(values: Mapping[str, str], what: str) -> dict[str, str]:
    """`${NAME}` replaced from the environment. Raises UsageError VA445."""

    def read(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            raise UsageError(
                f"{what} needs the variable {match[1]}, which is not set", code="VA445"
            )
        return value

    return {key: _VARIABLE.sub(read, value) for key, value in values.items()}
