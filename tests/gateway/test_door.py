"""Who may enter: Host, Origin, key, capacity; on HTTP and WebSocket, on localhost too."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
import websockets

from gateway.auth import Doorkeeper, scope_of
from gateway.config import GatewayConfig, check_bind
from gateway.grant import Grant, Scope
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit
KEY = "0123456789abcdef-a-test-key"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_key(host: str) -> None:
    check_bind(GatewayConfig(host=host))


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (GatewayConfig(host="0.0.0.0"), "VA450"),
        (GatewayConfig(host="::"), "VA450"),
        (GatewayConfig(host="voice.example"), "VA450"),
        (GatewayConfig(api_keys=("short",)), "VA451"),
        (GatewayConfig(allowed_origins=("voice.example",)), "VA452"),
        (GatewayConfig(allowed_origins=("https://voice.example/page",)), "VA452"),
    ],
)
def test_an_open_door_is_refused_at_start(config: GatewayConfig, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_bind(config)
    assert caught.value.code == code


def test_a_key_opens_other_hosts() -> None:
    check_bind(GatewayConfig(host="0.0.0.0", api_keys=(KEY,)))


HOSTS = [
    ("127.0.0.1:8080", True), ("localhost:8080", True), ("LOCALHOST:8080", True),
    ("[::1]:8080", True), ("voice.example", True), ("voice.example:8080", True),
    ("exact.example:443", True), ("exact.example:444", False), ("exact.example", False),
    ("localhost:9999", False), ("localhost", False), ("evil.example:8080", False),
    ("127.0.0.1.evil.example:8080", False), ("", False), (None, False),
]  # fmt: skip


@pytest.mark.parametrize(("host", "fine"), HOSTS)
def test_hosts(host: str | None, fine: bool) -> None:
    keeper = Doorkeeper(GatewayConfig(allowed_hosts=("voice.example", "exact.example:443")))
    assert (keeper.check_host(host) is None) == fine


def test_bound_to_every_address_it_answers_to_addresses_and_its_own_name() -> None:
    import socket

    keeper = Doorkeeper(GatewayConfig(host="0.0.0.0", api_keys=(KEY,)))
    own = f"{socket.gethostname()}:8080"
    for host in ("192.168.1.20:8080", "[fe80::1]:8080", own, "localhost:8080"):
        assert keeper.check_host(host) is None
    for host in ("192.168.1.20:81", "rebound.example:8080", "1.2.3.4.example:8080"):
        assert keeper.check_host(host) is not None


@pytest.mark.parametrize(
    ("origin", "fine"),
    [
        (None, True), ("http://localhost:8080", True), ("https://localhost:8080", True),
        ("https://app.example", True), ("https://app.example:444", False),
        ("http://localhost:9", False), ("null", False), ("http://evil.example", False),
        ("http://localhost:8080.evil.example", False), ("", False), ("file://", False),
    ],
)  # fmt: skip
def test_origins(origin: str | None, fine: bool) -> None:
    keeper = Doorkeeper(GatewayConfig(allowed_origins=("https://app.example",)))
    assert (keeper.check_origin(origin, "localhost:8080") is None) == fine


@pytest.mark.parametrize(
    ("headers", "protocols", "fine"),
    [
        ({"authorization": f"Bearer {KEY}"}, (), True),
        ({"authorization": f"bearer  {KEY}"}, (), True),
        ({}, ("realtime", f"openai-insecure-api-key.{KEY}"), True),
        ({"authorization": f"Basic {KEY}"}, (), False),
        ({"authorization": f"Bearer {KEY}x"}, (), False),
        ({"authorization": "Bearer ключ"}, (), False),
        ({}, ("realtime",), False),
        ({}, (), False),
    ],
)
def test_keys(headers: dict[str, str], protocols: tuple[str, ...], fine: bool) -> None:
    keeper = Doorkeeper(GatewayConfig(api_keys=("another key of some length", KEY)))
    assert isinstance(keeper.identify(headers, protocols), Grant) == fine


async def get(server: Running, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(server.url + path, headers=headers)


async def test_http_routes_and_headers() -> None:
    stack = FakeStack()
    async with serving(stack) as server:
        assert (await get(server, "/healthz")).json() == {"status": "ok"}
        assert (await get(server, "/readyz")).status_code == 200
        page = await get(server, "/")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert "style=" not in page.text
        assert "<style" not in page.text
        assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
        for name in (
            "app.js",
            "call.js",
            "meters.js",
            "playback.js",
            "socket_call.js",
            "transcript.js",
            "waterfall.js",
            "worklet.js",
        ):
            script = await get(server, f"/{name}")
            assert script.headers["content-type"].startswith("text/javascript")
        assert (await get(server, "/../app.py")).status_code == 404
        assert (await get(server, "/api/agents")).json() == {"agents": ["default", "other"]}
        stack.ready = False
        assert (await get(server, "/readyz")).status_code == 503


async def test_other_hosts_and_origins_are_refused_with_words() -> None:
    async with serving(FakeStack()) as server:
        rebound = await get(server, "/", host=f"evil.example:{server.port}")
        assert rebound.status_code == 421
        assert "allowed_hosts" in rebound.json()["error"]["message"]
        assert "content-security-policy" in rebound.headers
        foreign = await get(server, "/api/agents", origin="http://evil.example")
        assert foreign.status_code == 403
        assert "access-control-allow-origin" not in foreign.headers
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}):
            with pytest.raises(websockets.InvalidStatus) as caught:
                await websockets.connect(f"{server.ws}/v1/realtime", additional_headers=headers)
            assert caught.value.response.status_code == 403
            assert b"allowed_origins" in caught.value.response.body
        assert not server.gateway.live


async def test_an_allowed_origin_passes_with_cors() -> None:
    async with serving(FakeStack(), allowed_origins=("https://app.example",)) as server:
        answer = await get(server, "/api/agents", origin="https://app.example")
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        async with httpx.AsyncClient() as client:
            preflight = await client.options(
                f"{server.url}/rtc/offer", headers={"origin": "https://app.example"}
            )
        assert preflight.status_code == 204
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        origin = {"Origin": "https://app.example"}
        async with websockets.connect(
            f"{server.ws}/v1/realtime", additional_headers=origin
        ) as socket:
            assert json.loads(await socket.recv())["type"] == "session.created"


async def test_a_keyed_server() -> None:
    async with serving(FakeStack(), api_keys=(KEY,)) as server:
        for path in ("/metrics", "/api/agents", "/rtc/offer"):
            refused = await get(server, path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        for path in ("/", "/app.js", "/healthz", "/readyz"):
            assert (await get(server, path)).status_code == 200
        assert (await get(server, "/metrics", authorization=f"Bearer {KEY}")).status_code == 200
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"{server.ws}/v1/realtime")
        assert caught.value.response.status_code == 401
        assert KEY.encode() not in caught.value.response.body
        protocols = ["realtime", f"openai-insecure-api-key.{KEY}", "openai-beta.realtime-v1"]
        async with websockets.connect(
            f"{server.ws}/v1/realtime",
            subprotocols=[websockets.Subprotocol(p) for p in protocols],
        ) as socket:
            assert socket.subprotocol == "realtime"
            assert json.loads(await socket.recv())["type"] == "session.created"


async def test_a_full_server_answers_with_an_error_event_and_a_close_code() -> None:
    async with serving(FakeStack(), max_calls=1) as server:
        async with websockets.connect(f"{server.ws}/v1/realtime") as first:
            await first.recv()
            async with websockets.connect(f"{server.ws}/v1/realtime") as second:
                error = json.loads(await second.recv())
                assert error["error"]["code"] == "VA460"
                await second.wait_closed()
                assert second.close_code == 1013
        async with asyncio.timeout(5):
            while server.gateway.admission.active:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert server.gateway.admission.refused == 1
        async with websockets.connect(f"{server.ws}/v1/realtime") as third:
            assert json.loads(await third.recv())["type"] == "session.created"


async def test_draining_refuses_new_calls_and_ends_live_ones() -> None:
    stack = FakeStack()
    async with serving(stack) as server:
        async with websockets.connect(f"{server.ws}/v1/realtime") as socket:
            await socket.recv()
            await server.gateway.drain(0.05)
            await socket.wait_closed()
            assert socket.close_code == 1001
        assert (await get(server, "/readyz")).json() == {"status": "draining"}
        async with websockets.connect(f"{server.ws}/v1/realtime") as late:
            assert json.loads(await late.recv())["error"]["code"] == "VA461"
    assert stack.calls[0].ended == "server_draining"


async def test_a_token_opens_calls_of_its_agent_and_nothing_else() -> None:
    stack = FakeStack()
    async with serving(stack, api_keys=(KEY,)) as server:
        keys = server.gateway.doorkeeper.keys
        grant = keys.find(KEY)
        assert grant is not None
        token = server.gateway.doorkeeper.tokens.mint(grant, agent="other").value
        bearer = {"authorization": f"Bearer {token}"}
        assert (await get(server, "/api/agents", **bearer)).status_code == 200
        for path in ("/metrics", "/v1/models"):
            refused = await get(server, path, **bearer)
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "insufficient_scope"
        async with websockets.connect(
            f"{server.ws}/v1/realtime", additional_headers=bearer
        ) as socket:
            assert json.loads(await socket.recv())["type"] == "session.created"
        assert stack.calls[0].agent == "other"
        async with websockets.connect(
            f"{server.ws}/v1/realtime?agent=default", additional_headers=bearer
        ) as socket:
            assert json.loads(await socket.recv())["error"]["code"] == "VA458"
        body = {"type": "offer", "sdp": "v=0", "agent": "default"}
        async with httpx.AsyncClient() as client:
            offer = await client.post(f"{server.url}/rtc/offer", json=body, headers=bearer)
        assert offer.json()["error"]["code"] == "VA458"
        expired = await get(server, "/api/agents", authorization="Bearer ek_a.b.c")
        assert expired.status_code == 401
        assert expired.json()["error"]["code"] == "invalid_token"


def test_scopes_of_paths() -> None:
    for path, scope in (
        ("/metrics", Scope.METRICS), ("/ops", Scope.ADMIN), ("/api/ops/calls", Scope.ADMIN),
        ("/v1/realtime", Scope.CALL), ("/v1/realtime/client_secrets", Scope.CALL),
        ("/v1/realtimes", Scope.API), ("/v1/chat/completions", Scope.API), ("/v1", Scope.CALL),
        ("/rtc/offer", Scope.CALL), ("/rtc/socket", Scope.CALL), ("/opsx", Scope.CALL),
        ("*", Scope.ADMIN), ("", Scope.ADMIN),
    ):  # fmt: skip
        assert scope_of(path) is scope, path
