"""An agent's tools, from its file: found, checked for one name each, and kept connected."""

from __future__ import annotations

from collections.abc import Iterable

import httpx2

from voice_agent.errors import UsageError

from .base import Tool, ToolFailed
from .builtin import end_call, send_dtmf, transfer_call
from .guard import Guard, client
from .mcp_server import McpConnection, tools_of
from .python import find, from_function
from .settings import NAME, McpServer, ToolsSection
from .webhook import webhook


class Toolbox:
    """Owns the connections of all agents' tools."""

    def __init__(self, private_hosts: Iterable[str] = ()) -> None:
        self._guard = Guard(private_hosts)
        self._client: httpx2.AsyncClient | None = None
        self._mcp: dict[str, tuple[McpServer, McpConnection]] = {}

    def ready(self, section: ToolsSection) -> tuple[Tool, ...]:
        """What is there without waiting: of MCP servers, those that are connected.

        Raises UsageError VA445, VA446.
        """
        if not section.any:
            return ()
        found: list[Tool] = []
        if section.end_call:
            found.append(end_call())
        if section.transfer:
            found.append(transfer_call(section.transfer, section.timeout_s))
        if section.send_dtmf:
            found.append(send_dtmf())
        for entry in section.python:
            function = find(entry) if isinstance(entry, str) else entry
            limits = {"timeout_s": section.timeout_s}
            found.append(from_function(function, max_chars=section.max_chars, **limits))
        for name, hook in section.webhooks.items():
            found.append(webhook(name, hook, section, self._http()))
        for name, server in section.mcp.items():
            known = self._mcp.get(name)
            if known is not None and known[0] == server:
                found += tools_of(known[1], server, section)
        return _checked(found)

    async def complete(self, section: ToolsSection) -> tuple[Tool, ...]:
        """All of them. Raises UsageError VA445, VA446."""
        for name, server in section.mcp.items():
            known = self._mcp.get(name)
            if known is None or known[0] != server:
                connection = McpConnection(name, server, self._guard)
                try:
                    await connection.connect()
                except ToolFailed as error:
                    raise UsageError(f"the MCP server {name!r}: {error}", code="VA446") from error
                self._mcp[name] = (server, connection)
                if known is not None:
                    await known[1].close()
        return self.ready(section)

    async def close(self) -> None:
        for _, connection in self._mcp.values():
            await connection.close()
        self._mcp.clear()
        if self._client is not None:
            await self._client.aclose()

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = client(self._guard, {}, None)
        return self._client


def _checked(tools: list[Tool]) -> tuple[Tool, ...]:
    seen: set[str] = set()
    for tool in tools:
        if not NAME.fullmatch(tool.name):
            raise UsageError(f"{tool.name!r} is no name for a tool", code="VA445")
        if tool.name in seen:
            raise UsageError(f"two tools are called {tool.name!r}", code="VA445")
        seen.add(tool.name)
    return tuple(tools)
