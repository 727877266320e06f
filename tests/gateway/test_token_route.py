"""The page's token, how often one may knock, and what each kind of page shows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from gateway.auth import Doorkeeper
from gateway.config import GatewayConfig, check_bind
from gateway.grant import Change, Grant, Scope
from gateway.tokens import MOST_S
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving
from voice_agent.errors import UsageError
from voice_agent.keys import KeyFile

pytestmark = pytest.mark.unit
KEY = "0123456789abcdef-a-test-key"


async def post(
    server: Running, body: Any = None, key: str = "", path: str = "/api/token"
) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient() as client:
        return await client.post(server.url + path, json=body, headers=headers)


def grant_of(server: Running, answer: httpx.Response) -> Grant:
    grant = server.gateway.doorkeeper.tokens.verify(answer.json()["token"])
    assert grant is not None
    return grant


async def test_a_key_is_traded_for_a_minute_of_calls() -> None:
    async with serving(FakeStack(), api_keys=(KEY,)) as server:
        refused = await post(server)
        assert refused.status_code == 401
        answer = await post(server, key=KEY)
        assert answer.headers["cache-control"] == "no-store"
        assert KEY not in answer.text
        assert 58 <= answer.json()["expires_in"] <= 60
        assert answer.json()["agents"] == ["default", "other"]
        grant = grant_of(server, answer)
        assert (grant.scopes, grant.changes) == ({Scope.CALL}, frozenset())
        again = await post(server, key=answer.json()["token"])
        assert again.json()["error"]["code"] == "VA455"
        one = await post(
            server, {"agent": "other", "changes": ["voice"], "scopes": ["call", "metrics"]}, KEY
        )
        assert one.json()["agents"] == ["other"]
        grant = grant_of(server, one)
        assert (grant.agent, grant.changes) == ("other", {Change.VOICE})
        assert grant.opens(Scope.METRICS)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"agent": "nobody"}, "VA465"),
        ({"seconds": MOST_S + 1}, "VA455"),
        ({"seconds": "60"}, "VA455"),
        ({"scopes": ["root"]}, "VA455"),
        ({"instructions": "obey"}, "VA455"),
        ([], "VA455"),
        ({"agent": "x" * 5000}, "VA455"),
    ],
)
async def test_what_no_token_is_made_for(body: Any, code: str) -> None:
    async with serving(FakeStack(), api_keys=(KEY,)) as server:
        answer = await post(server, body, KEY)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == code


async def test_a_public_page_opens_one_agent_and_only_calls() -> None:
    async with serving(FakeStack(), api_keys=(KEY,), page="public") as server:
        answer = await post(server)
        assert answer.json()["agents"] == ["default"]
        grant = grant_of(server, answer)
        assert (grant.agent, grant.scopes, grant.changes) == ("default", {Scope.CALL}, frozenset())
        for body in ({"scopes": ["admin"]}, {"agent": "other"}, {"changes": ["instructions"]}):
            assert (await post(server, body)).status_code == 400
        assert (await post(server, key="a wrong key of some length")).json()["agents"] == [
            "default"
        ]
        token = answer.json()["token"]
        headers = {"authorization": f"Bearer {token}"}
        async with websockets.connect(
            f"{server.ws}/v1/realtime", additional_headers=headers
        ) as socket:
            assert "session.created" in str(await socket.recv())


async def test_a_server_without_keys_gives_tokens_to_its_page_too() -> None:
    async with serving(FakeStack()) as server:
        answer = await post(server)
        assert grant_of(server, answer).subject == "local"


async def test_the_page_can_be_off() -> None:
    async with serving(FakeStack(), page="off") as server, httpx.AsyncClient() as client:
        for path in ("/", "/app.js", "/style.css"):
            assert (await client.get(server.url + path)).status_code == 404
        assert (await client.get(f"{server.url}/healthz")).status_code == 200


async def test_wrong_keys_are_soon_not_looked_at() -> None:
    async with serving(FakeStack(), api_keys=(KEY,), failures_per_minute=3) as server:
        wrong = [await post(server, key=f"wrong key number {n}") for n in range(3)]
        assert [answer.status_code for answer in wrong] == [401] * 3
        for key in ("one more wrong key", KEY):
            answer = await post(server, key=key)
            assert answer.status_code == 429
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.json()["error"]["type"] == "rate_limit_error"


async def test_requests_and_calls_have_a_rate_on_a_keyed_server() -> None:
    limits = {"requests_per_minute": 5, "calls_per_minute": 2}
    async with serving(FakeStack(), api_keys=(KEY,), **limits) as server:
        headers = {"authorization": f"Bearer {KEY}"}
        for _ in range(2):
            async with websockets.connect(
                f"{server.ws}/v1/realtime", additional_headers=headers
            ) as socket:
                await socket.recv()
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"{server.ws}/v1/realtime", additional_headers=headers)
        assert caught.value.response.status_code == 429
        codes = [(await post(server, key=KEY)).status_code for _ in range(4)]
        assert codes == [200, 200, 429, 429]
    async with serving(FakeStack(), **limits) as server:
        assert [(await post(server)).status_code for _ in range(8)] == [200] * 8


async def test_keys_of_the_file_come_and_go_while_the_server_runs(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    with pytest.raises(UsageError):
        check_bind(GatewayConfig(host="0.0.0.0", keys_file=file.path))
    record, key = file.add("phone", ("call",), agent="other")
    check_bind(GatewayConfig(host="0.0.0.0", keys_file=file.path))
    async with serving(FakeStack(), keys_file=file.path) as server:
        assert (await post(server)).status_code == 401
        answer = await post(server, key=key)
        assert answer.json()["agents"] == ["other"]
        assert grant_of(server, answer).subject == record.id
        assert (await post(server, {"scopes": ["admin"]}, key)).status_code == 400
        assert (await post(server, {"changes": ["tools"]}, key)).status_code == 400
        _, admin = file.add("operator", ("admin",))
        assert (await post(server, {"changes": ["tools"]}, admin)).status_code == 200
        file.revoke("phone")
        assert server.gateway.doorkeeper.tokens.verify(answer.json()["token"]) is None
        assert (await post(server, key=key)).status_code == 401
        file.revoke("operator")
        assert (await post(server)).status_code == 401, "revoking the last key shuts the door"


def test_an_expired_key_is_not_good(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, key = file.add("brief", days=-1.0)
    _, other = file.add("long", days=1.0)
    keeper = Doorkeeper(GatewayConfig(keys_file=file.path))
    assert not isinstance(keeper.identify({"authorization": f"Bearer {key}"}, ()), Grant)
    assert isinstance(keeper.identify({"authorization": f"Bearer {other}"}, ()), Grant)


def test_a_broken_key_file_leaves_the_door_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, key = file.add("phone")
    keeper = Doorkeeper(GatewayConfig(keys_file=file.path))
    assert keeper.key_required
    file.path.write_text("not json")
    for _ in range(3):
        assert isinstance(keeper.identify({"authorization": f"Bearer {key}"}, ()), Grant)
        assert not isinstance(keeper.identify({}, ()), Grant)
    assert len([r for r in caplog.records if "stay good" in r.getMessage()]) == 1
    with pytest.raises(UsageError):
        check_bind(GatewayConfig(keys_file=file.path))


async def test_calls_at_once_are_counted_by_key_and_by_address_of_a_public_page() -> None:
    async def connect(server: Running, token: str) -> Any:
        headers = {"authorization": f"Bearer {token}"}
        socket = await websockets.connect(f"{server.ws}/v1/realtime", additional_headers=headers)
        return socket, str(await socket.recv())

    other = "another test key of some length"
    limits = {"page": "public", "max_calls_per_key": 1}
    async with serving(FakeStack(), api_keys=(KEY, other), **limits) as server:
        tokens = [KEY, other, (await post(server)).json()["token"]]
        held = []
        for token in tokens:
            socket, first = await connect(server, token)
            assert "session.created" in first
            held.append(socket)
            late, refused = await connect(server, token)
            assert "VA467" in refused
            await late.close()
        by_key, refused = await connect(server, (await post(server, key=KEY)).json()["token"])
        assert "VA467" in refused, "a key's tokens count as the key"
        for socket in (*held, by_key):
            await socket.close()
        async with asyncio.timeout(5):
            while server.gateway.admission.active:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not server.gateway.admission._by_owner
        again, first = await connect(server, KEY)
        assert "session.created" in first
        await again.close()
