"""The operator's view: what it tells, who may read it, and hanging up."""

from __future__ import annotations

import httpx
import pytest
import websockets

from gateway.ops import STAGES
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving
from voice_agent.events import EndReason

pytestmark = pytest.mark.unit
KEY = "correct horse battery staple"


async def test_a_call_is_seen_and_hung_up() -> None:
    stack = FakeStack()
    async with serving(stack) as server, httpx.AsyncClient(base_url=server.url) as client:
        before = (await client.get("/api/ops")).json()
        assert before["live"] == []
        assert before["ready"]
        async with websockets.connect(f"{server.ws}/v1/realtime?model=other") as socket:
            await socket.recv()
            seen = (await client.get("/api/ops")).json()
            assert seen["calls"] == {
                "live": 1,
                "limit": server.gateway.admission.max_calls,
                "refused": 0,
            }
            (line,) = seen["live"]
            assert (line["agent"], line["transport"]) == ("other", "realtime")
            assert (line["caller"], line["floor"], line["turns"]) == ("silent", "idle", 1)
            path = f"/api/ops/calls/{line['id']}/hangup"
            assert (await client.post(path)).status_code == 204
            async for _ in socket:
                pass
            assert socket.close_code == 1000
        (call,) = stack.calls
        assert call.ended is EndReason.OPERATOR
        gone = await client.post(path)
        assert gone.status_code == 404
        assert gone.json()["error"]["code"] == "no_such_call"


async def test_every_number_has_its_stage() -> None:
    async with serving(FakeStack()) as server, httpx.AsyncClient(base_url=server.url) as client:
        seen = (await client.get("/api/ops")).json()
        gauges = server.gateway.gauges()
    assert seen["stages"]["Language model"] == {"running": 1.0}
    assert set(seen["stages"]) <= {*STAGES, "Server"}
    assert sum(map(len, seen["stages"].values())) == len(gauges)
    assert seen["kv"] is None, "no engine in this process"


async def test_the_memory_of_an_engine_is_told() -> None:
    stack = FakeStack()
    names = ("total", "free", "cached", "held", "pinned", "fenced")
    blocks = {f"engine_kv_blocks_{name}": float(n) for n, name in enumerate(names)}
    stack.gauges = lambda: blocks | {"early_shed": 2.0}  # type: ignore[method-assign]
    async with serving(stack) as server, httpx.AsyncClient(base_url=server.url) as client:
        seen = (await client.get("/api/ops")).json()
    assert seen["kv"] == {name: n for n, name in enumerate(names)}
    assert seen["early_work"] == "none: busy"


async def test_draining_is_told() -> None:
    async with serving(FakeStack()) as server, httpx.AsyncClient(base_url=server.url) as client:
        server.gateway.admission.draining = True
        seen = (await client.get("/api/ops")).json()
    assert (seen["ready"], seen["draining"]) == (False, True)


async def test_only_an_admin_reads_it() -> None:
    async with (
        serving(FakeStack(), api_keys=(KEY,)) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        assert (await client.get("/ops")).status_code == 200, "the page itself tells nothing"
        assert (await client.get("/api/ops")).status_code == 401
        admin = {"authorization": f"Bearer {KEY}"}
        assert (await client.get("/api/ops", headers=admin)).status_code == 200
        made = await client.post("/api/token", headers=admin, json={})
        caller = {"authorization": f"Bearer {made.json()['token']}"}
        for method, path in (("GET", "/api/ops"), ("POST", "/api/ops/calls/x/hangup")):
            assert (await client.request(method, path, headers=caller)).status_code == 403
