"""Where a tool's work is done: Python functions, webhooks behind the guard, MCP servers."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import httpx2
import pytest
from mcp.server.mcpserver import MCPServer
from pydantic import Field

from voice_agent.agent_file import AgentFile
from voice_agent.errors import UsageError
from voice_agent.tools import guard
from voice_agent.tools.arguments import parse
from voice_agent.tools.base import Tool, ToolFailed
from voice_agent.tools.guard import Guard, GuardedTransport, client
from voice_agent.tools.mcp_server import McpConnection, tools_of
from voice_agent.tools.python import from_function, tool
from voice_agent.tools.settings import McpServer, ToolsSection, Webhook
from voice_agent.tools.toolbox import Toolbox
from voice_agent.tools.webhook import webhook

pytestmark = pytest.mark.unit

CALL: Any = SimpleNamespace(id="c1", handle="the call")


def made(function: Callable[..., Any]) -> Tool:
    return from_function(function, timeout_s=10.0, max_chars=2000)


# ---------------------------------------------------------------- Python


@tool(read_only=True, timeout_s=3, on_interrupt="cancel")
async def table(
    people: Annotated[int, Field(ge=1)], where: Literal["in", "out"] = "in", call: Any = None
) -> dict[str, Any]:
    """Find a table."""
    return {"people": people, "where": where, "call": call}


async def test_a_functions_signature_is_the_schema() -> None:
    t = made(table)
    assert (t.name, t.description, t.read_only, t.timeout_s, t.on_interrupt) == (
        "table", "Find a table.", True, 3, "cancel",
    )  # fmt: skip
    assert set(t.parameters["properties"]) == {"people", "where"}
    assert t.parameters["required"] == ["people"]
    told = await t.run(parse(t, '{"people": 2}'), CALL)
    assert told == '{"people": 2, "where": "in", "call": "the call"}'


@pytest.mark.parametrize("text", ['{"people": 0}', '{"people": "two"}', "[]", "{", "{}"])
def test_arguments_that_do_not_fit_never_reach_it(text: str) -> None:
    with pytest.raises(ToolFailed):
        parse(made(table), text)


async def test_an_argument_it_does_not_have_never_reaches_it() -> None:
    t = made(table)
    with pytest.raises(ToolFailed, match="Extra inputs"):
        await t.run(parse(t, '{"people": 1, "x": 1}'), CALL)


def test_a_schema_that_refers_elsewhere_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: asked.append(a))
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}

    async def run(arguments: dict[str, Any], call: Any) -> None:
        """Never."""

    with pytest.raises(ToolFailed, match="broken"):
        parse(Tool("t", "d", schema, run), '{"a": 1}')
    assert asked == []


async def test_a_plain_function_and_nothing_to_tell() -> None:
    def note(text: str) -> None:
        """Write down."""

    assert await made(note).run({"text": "x"}, CALL) is None


def test_a_function_without_a_json_form_is_refused_by_name() -> None:
    def odd(x: asyncio.Event) -> str:
        return ""

    with pytest.raises(UsageError, match="VA445: 'odd'"):
        made(odd)


@pytest.mark.parametrize("path", ["nowhere:f", "math:pi", "math:missing", "math"])
def test_a_path_that_leads_to_no_function(path: str) -> None:
    with pytest.raises(UsageError, match="VA445"):
        Toolbox().ready(ToolsSection(python=(path,)))


def test_two_tools_of_one_name() -> None:
    with pytest.raises(UsageError, match="two tools are called 'end_call'"):
        Toolbox().ready(ToolsSection(python=(tool(name="end_call")(lambda: 1),), end_call=True))


# ---------------------------------------------------------------- the guard


def resolver(*addresses: str) -> Callable[[str, int], Any]:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.9", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "fe80::1%eth0", "fd00::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1", "::",
    ],
)  # fmt: skip
async def test_an_address_inside_is_refused_whatever_it_is_called(address: str) -> None:
    with pytest.raises(ToolFailed) as refused:
        await Guard(resolve=resolver(address)).address("example.org", 443)
    assert address not in str(refused.value)


async def test_one_bad_address_among_good_ones_is_enough() -> None:
    with pytest.raises(ToolFailed):
        await Guard(resolve=resolver("93.184.216.34", "10.0.0.1")).address("example.org", 443)


@pytest.mark.parametrize("private", ["10.0.0.5", "10.0.0.0/8", "crm.internal"])
async def test_what_the_operator_opens_is_open(private: str) -> None:
    guard = Guard([private], resolver("10.0.0.5"))
    assert await guard.address("CRM.internal.", 80) == "10.0.0.5"


async def test_a_public_address_is_reached_by_address_and_spoken_to_by_name() -> None:
    seen: list[httpx2.Request] = []

    class Pool(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            seen.append(request)
            return httpx2.Response(200)

    transport = GuardedTransport(Guard(resolve=resolver("93.184.216.34")))
    transport._pools["https", "example.org", 443] = Pool()  # type: ignore[assignment]
    async with httpx2.AsyncClient(transport=transport) as http:
        await http.get("https://example.org/x")
    (request,) = seen
    assert request.url.host == "93.184.216.34"
    assert request.headers["host"] == "example.org"
    assert request.extensions["sni_hostname"] == "example.org"


async def test_certificates_are_read_once_and_not_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers: list[int] = []
    make = ssl.create_default_context

    def read(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        readers.append(threading.get_ident())
        return make(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", read)
    guard._trusted.cache_clear()
    async with (
        endpoint(answer(b"ok")) as (url, asked),
        client(Guard(["127.0.0.1"]), {}, 5.0) as http,
    ):
        for _ in range(3):
            await http.get(url)
    assert len(asked) == 3
    assert len(readers) == 1
    assert threading.get_ident() not in readers


# ---------------------------------------------------------------- webhooks


@asynccontextmanager
async def endpoint(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers every request so."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if b"content-length" in h),
            0,
        )
        asked.append(head + await reader.readexactly(length))
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", asked


def answer(body: bytes, status: str = "200 OK", more: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n".encode()
    return head + more + b"\r\n" + body


async def call_hook(url: str, private: tuple[str, ...] = ("127.0.0.1",), **hook: Any) -> str | None:
    section = ToolsSection(max_chars=100)
    async with client(Guard(private), {}, None) as http:
        made = webhook("hook", Webhook(url=url, description="d", **hook), section, http)
        return await made.run({"a": 1}, CALL)


async def test_a_webhook_posts_the_arguments_and_tells_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOK_KEY", "secret")
    async with endpoint(answer(b"it is done")) as (url, asked):
        assert await call_hook(url, headers={"X-Key": "k ${HOOK_KEY}"}) == "it is done"
    assert b"x-key: k secret" in asked[0].lower()
    assert asked[0].endswith(b'{"tool":"hook","call":"c1","arguments":{"a":1}}')


async def test_get_sends_them_as_a_query() -> None:
    async with endpoint(answer(b"ok")) as (url, asked):
        assert await call_hook(url, method="GET") == "ok"
    assert asked[0].startswith(b"GET /hook?a=1 ")


async def test_a_long_answer_is_read_no_further_than_is_told() -> None:
    async with endpoint(answer(b"x" * 500_000)) as (url, _):
        told = await call_hook(url)
    assert told is not None
    assert 100 < len(told) <= 401


@pytest.mark.parametrize("status", ["500 Broken", "302 Found", "404 Not Found"])
async def test_any_other_status_is_a_failure_and_no_way_elsewhere(status: str) -> None:
    there = b"Location: http://127.0.0.1:1/\r\n"
    async with endpoint(answer(b"secret", status, there)) as (url, asked):
        with pytest.raises(ToolFailed, match=status[:3]):
            await call_hook(url)
    assert len(asked) == 1


async def test_a_private_endpoint_is_refused_unless_opened() -> None:
    async with endpoint(answer(b"ok")) as (url, asked):
        with pytest.raises(ToolFailed, match="may be reached"):
            await call_hook(url, private=())
    assert asked == []


async def test_nobody_answers() -> None:
    with pytest.raises(ToolFailed, match="cannot be reached"):
        await call_hook("http://127.0.0.1:1/")


async def test_a_header_that_needs_an_unset_variable() -> None:
    with pytest.raises(UsageError, match=r"VA445.*NOT_SET_ANYWHERE"):
        await call_hook("http://a/", headers={"K": "${NOT_SET_ANYWHERE}"})


# ---------------------------------------------------------------- MCP


def mcp_server() -> MCPServer:
    server = MCPServer("test")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add."""
        return str(a + b)

    @server.tool()
    def fail() -> str:
        raise ValueError("no such thing")

    return server


async def connected(**settings: Any) -> tuple[McpConnection, list[Tool]]:
    server = McpServer(command="unused", **settings)
    connection = McpConnection("sums", server, Guard(), within=mcp_server())
    await connection.connect()
    return connection, tools_of(connection, server, ToolsSection())


async def test_an_mcp_servers_tools() -> None:
    connection, tools = await connected(read_only=("add",))
    try:
        by_name = {t.name: t for t in tools}
        add = by_name["add"]
        assert (add.description, add.read_only, by_name["fail"].read_only) == ("Add.", True, False)
        assert await add.run(parse(add, '{"a": 2, "b": 3}'), CALL) == "5"
        with pytest.raises(ToolFailed):
            await by_name["fail"].run({}, CALL)
    finally:
        await connection.close()


async def test_only_some_of_them() -> None:
    connection, tools = await connected(only=("add",))
    await connection.close()
    assert [t.name for t in tools] == ["add"]


async def test_a_name_that_it_does_not_have() -> None:
    connection = McpConnection("sums", McpServer(command="x"), Guard(), within=mcp_server())
    await connection.connect()
    try:
        with pytest.raises(UsageError, match=r"VA446.*has no tool 'sub'.*add, fail"):
            tools_of(connection, McpServer(command="x", only=("sub",)), ToolsSection())
    finally:
        await connection.close()


async def test_a_lost_connection_is_made_again() -> None:
    connection, tools = await connected()
    try:
        await connection.close()
        assert await tools[0].run({"a": 1, "b": 1}, CALL) == "2"
    finally:
        await connection.close()


async def test_a_server_that_cannot_be_started_is_an_error_at_start() -> None:
    section = ToolsSection(mcp={"gone": McpServer(command="/nowhere/at-all")})
    toolbox = Toolbox()
    with pytest.raises(UsageError, match="VA446: the MCP server 'gone'"):
        await toolbox.complete(section)
    await toolbox.close()


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "tools",
    [
        {"webhooks": {"a": {"url": "ftp://a", "description": "d"}}},
        {"webhooks": {"a": {"url": "https://u:p@a", "description": "d"}}},
        {"webhooks": {"a b": {"url": "https://a", "description": "d"}}},
        {"webhooks": {"a": {"url": "https://a", "description": "d", "parameters": {"type": "x"}}}},
        {"mcp": {"a": {}}},
        {"mcp": {"a": {"url": "https://a", "command": "c"}}},
        {"filler_after_ms": 3001},
        {"timeout_s": 0},
        {"unknown": 1},
    ],
)
def test_settings_that_cannot_be(tools: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="tools"):
        AgentFile(name="a", instructions="b", tools=tools)
