"""One MCP server and its tools: https://modelcontextprotocol.io

The connection lives in a task of its own, as the package wants it; a lost one is made again by the
next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

from voice_agent.errors import UsageError

from .base import Run, Tool, ToolFailed
from .guard import Guard, client
from .settings import McpServer, ToolsSection
from .webhook import with_environment

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult
    from mcp_types import Tool as McpTool

    from voice_agent.agent import Call

log = logging.getLogger(__name__)

CONNECT_S = 15.0
MAX_PAGES = 20


class McpConnection:
    """Owns the connection to one server; shared by all agents and calls that name it alike."""

    def __init__(self, name: str, server: McpServer, guard: Guard, *, within: Any = None) -> None:
        """within: a server in this process, for tests."""
        self.name = name
        self._server = server
        self._guard = guard
        self._within = within
        self._client: Client | None = None
        self._life: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._lock = asyncio.Lock()
        self.tools: tuple[McpTool, ...] = ()

    async def connect(self) -> Client:
        """The live connection, made if there is none. Raises ToolFailed."""
        async with self._lock:
            if self._client is not None:
                return self._client
            await self.close()
            self._stop = asyncio.Event()
            ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._live(ready))
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.shield(ready)
            except TimeoutError:
                await self.close()
                raise ToolFailed("its server does not answer") from None

    async def _live(self, ready: asyncio.Future[Client]) -> None:
        from mcp import Client  # loads slowly, and only for who has such a server

        try:
            async with contextlib.AsyncExitStack() as stack:
                transport = await self._transport(stack)
                live = await stack.enter_async_context(Client(transport))
                self.tools = await _listed(live)
                self._client = live
                ready.set_result(live)
                await self._stop.wait()
        except Exception as error:
            log.warning("the MCP server %s is gone: %s", self.name, error)
            if not ready.done():
                ready.set_exception(ToolFailed("its server cannot be reached"))
        finally:
            self._client = None

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Any:
        if self._within is not None:
            return self._within
        if self._server.command:
            from mcp.client.stdio import StdioServerParameters

            env = with_environment(self._server.env, f"the MCP server {self.name!r}")
            return StdioServerParameters(
                command=self._server.command, args=list(self._server.args), env=env or None
            )
        from mcp.client.streamable_http import streamable_http_client

        headers = with_environment(self._server.headers, f"the MCP server {self.name!r}")
        http = await stack.enter_async_context(client(self._guard, headers, None))
        return streamable_http_client(self._server.url, http_client=http)

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """The tool's text. Raises ToolFailed."""
        from mcp import MCPError

        live = await self.connect()
        try:
            result = await live.call_tool(tool, arguments)
        except MCPError as error:
            raise ToolFailed(str(error)) from error
        except Exception as error:
            self._stop.set()  # the next call connects anew
            self._client = None
            raise ToolFailed("the connection to its server was lost") from error
        text = _text(result)
        if result.is_error:
            raise ToolFailed(text or "it failed")
        return text

    async def close(self) -> None:
        """Idempotent."""
        self._stop.set()
        life, self._life = self._life, None
        if life is not None:
            _, late = await asyncio.wait({life}, timeout=2.0)
            for task in late:
                task.cancel()
            await asyncio.gather(life, return_exceptions=True)


async def _listed(live: Client) -> tuple[McpTool, ...]:
    found: list[McpTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await live.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(found)


def _text(result: CallToolResult) -> str:
    parts = [part.text for part in result.content if part.type == "text"]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def tools_of(connection: McpConnection, server: McpServer, tools: ToolsSection) -> list[Tool]:
    """The server's tools that are wanted. Raises UsageError VA446 for a name it does not have."""
    known = {tool.name: tool for tool in connection.tools}
    for name in (*server.only, *server.read_only):
        if name not in known:
            have = ", ".join(sorted(known))
            raise UsageError(
                f"the MCP server {connection.name!r} has no tool {name!r}; it has: {have}",
                code="VA446",
            )
    return [
        Tool(
            name,
            found.description or name,
            found.input_schema,
            _run(connection, name),
            read_only=name in server.read_only,
            timeout_s=server.timeout_s or tools.timeout_s,
            on_interrupt=server.on_interrupt,
            max_chars=tools.max_chars,
        )
        for name, found in known.items()
        if not server.only or name in server.only
    ]


def _run(connection: McpConnection, name: str) -> Run:
    async def run(arguments: dict[str, Any], call: Call) -> str:
        return await connection.call(name, arguments)

    return run
