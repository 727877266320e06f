"""Realtime calls over WebRTC, their further connections, and keys for browsers, by the official
Python client against a call without models."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from aiortc import RTCSessionDescription
from openai import APIStatusError, AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving
from tests.support.rtc_peer import Peer
from voice_agent.events import EndReason

pytestmark = pytest.mark.unit

ADMIN, OTHER = "a-key-of-the-operator", "another-key-of-the-operator"


class Caller(Peer):
    """Speaks the Realtime protocol on its data channel."""

    async def offer(self) -> str:
        self.channel = self.pc.createDataChannel("oai-events")
        self.channel.on("message", self._on_message)
        self.pc.on("track", self._on_track)
        self.pc.addTrack(self.microphone)
        await self.pc.setLocalDescription(await self.pc.createOffer())
        return str(self.pc.localDescription.sdp)

    async def accept(self, answer: str) -> None:
        await self.pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    def send(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))


@contextlib.asynccontextmanager
async def caller() -> AsyncIterator[Caller]:
    c = Caller()
    try:
        yield c
    finally:
        await c.close()


def client(server: Running, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(
        api_key=key, base_url=f"{server.url}/v1", websocket_base_url=f"{server.ws}/v1",
        max_retries=0,
    )  # fmt: skip


async def call(server: Running, c: Caller, key: str = "none", **session: Any) -> str:
    """Places a call by the official client; returns its id."""
    async with client(server, key) as openai:
        more = {"session": {"type": "realtime", **session}} if session else {}
        response = await openai.realtime.calls.with_raw_response.create(sdp=await c.offer(), **more)  # type: ignore[call-overload]
        assert response.http_response.status_code == 201
        assert response.headers["content-type"].startswith("application/sdp")
        await c.accept(response.http_response.text)
        return str(response.headers["location"].rsplit("/", 1)[1])


async def test_a_call_by_form_with_events_a_barge_in_and_valid_types() -> None:
    stack = FakeStack(reply_s=4.0)
    async with serving(stack) as server, caller() as c:
        await call(server, c, instructions="Be brief.", audio={"output": {"voice": "marin"}})
        created = await c.until("session.created")
        assert created["session"]["instructions"] == "Be brief."
        c.send("session.update", session={"type": "realtime", "max_output_tokens": 99})
        assert (await c.until("session.updated"))["session"]["max_output_tokens"] == 99
        c.microphone.loud = True
        await c.until("input_audio_buffer.speech_started")
        c.microphone.loud = False
        await c.until("output_audio_buffer.started")
        await c.until("response.output_audio_transcript.delta", 2)
        c.microphone.loud = True
        done = await c.until("response.done")
        assert done["response"]["status_details"]["reason"] == "turn_detected"
        cleared = await c.until("output_audio_buffer.cleared")
        assert cleared["response_id"] == done["response"]["id"]
        cut = await c.until("conversation.item.truncated")
        assert cut["audio_end_ms"] > 0
        c.microphone.loud = False
        assert len(c.sink.payloads) > 10
    assert stack.calls[0].updates[0]["instructions"] == "Be brief."
    assert not [e for e in c.events if e["type"] == "response.output_audio.delta"]
    adapter: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
    for event in c.events:
        adapter.validate_python(event)


async def test_a_raw_offer_and_events_sent_before_the_media_flows() -> None:
    stack = FakeStack(agents=("default", "receptionist"))
    async with serving(stack) as server, caller() as c, httpx.AsyncClient() as http:
        sdp = await c.offer()

        @c.channel.on("open")
        def at_once() -> None:
            c.send("session.update", session={"type": "realtime", "instructions": "Early."})

        response = await http.post(
            f"{server.url}/v1/realtime/calls?model=receptionist", content=sdp,
            headers={"content-type": "application/sdp"},
        )  # fmt: skip
        assert response.status_code == 201
        await c.accept(response.text)
        assert (await c.until("session.updated"))["session"]["instructions"] == "Early."
        assert [e["type"] for e in c.events][:2] == ["session.created", "conversation.created"]
    assert stack.calls[0].agent == "receptionist"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"content": "v=0", "headers": {"content-type": "application/sdp"}}, 400, "VA463"),
        ({"content": b"\xff", "headers": {"content-type": "application/sdp"}}, 400, "VA463"),
        ({"content": "x" * 70_000, "headers": {"content-type": "application/sdp"}}, 400, "VA466"),
        ({"json": {"sdp": "v=0"}}, 400, "VA463"),
        ({"files": {"session": (None, "{}")}}, 400, "VA463"),
        ({"files": {"sdp": (None, "v=0"), "session": (None, "[")}}, 400, "VA100"),
        ({"files": {"sdp": (None, "v=0"), "session": (None, '{"nonsense": 1}')}}, 400,
         "unknown_parameter"),
        ({"content": "no form", "headers": {"content-type": "multipart/form-data; boundary=x"}},
         400, "VA463"),
    ],
)  # fmt: skip
async def test_what_is_no_offer_is_refused_and_leaves_nothing(
    request_: dict[str, Any], status: int, code: str
) -> None:
    async with serving(FakeStack()) as server, httpx.AsyncClient() as http:
        response = await http.post(f"{server.url}/v1/realtime/calls", **request_)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert server.gateway.admission.active == 0


async def test_a_further_connection_sees_and_does_what_the_caller_may() -> None:
    stack = FakeStack()
    async with serving(stack) as server, caller() as c, client(server) as openai:
        call_id = await call(server, c)
        await c.until("session.created")
        async with openai.realtime.connect(call_id=call_id) as side:
            assert (await side.recv()).type == "session.created"
            assert (await side.recv()).type == "conversation.created"
            await side.session.update(session={"type": "realtime", "instructions": "From aside."})
            assert (await side.recv()).session.instructions == "From aside."
            assert (await c.until("session.updated"))["session"]["instructions"] == "From aside."
            await side.send({"type": "conversation.item.delete", "item_id": "none"})
            error = await side.recv()
            assert error.error.code == "item_not_found"
            await side.response.create()
            await c.until("response.done")
            kinds: list[str] = []
            while kinds[-1:] != ["response.done"]:
                kinds.append((await side.recv()).type)
            assert kinds[0] == "response.created"
        assert not [e for e in c.events if e["type"] == "error"], "who errs is told, nobody else"
        async with openai.realtime.connect(call_id=call_id) as side:
            await side.recv()
            await openai.realtime.calls.hangup(call_id)
            async with asyncio.timeout(10):
                last = [event.type async for event in side]  # until it is closed
            assert set(last) <= {"conversation.created"}
        with pytest.raises(APIStatusError) as gone:
            await openai.realtime.calls.hangup(call_id)
        assert gone.value.status_code == 404
    assert stack.calls[0].ended is EndReason.CALLER_HUNG_UP


async def test_a_caller_is_handed_on_where_the_line_can() -> None:
    stack = FakeStack()
    async with serving(stack) as server, caller() as c, client(server) as openai:
        call_id = await call(server, c)
        await c.until("session.created")
        with pytest.raises(APIStatusError) as refused:
            await openai.realtime.calls.refer(call_id, target_uri="sip:desk@example.com")
        assert (refused.value.status_code, refused.value.code) == (400, "VA115")
        stack.calls[0].line = object()  # type: ignore[assignment]
        await openai.realtime.calls.refer(call_id, target_uri="sip:desk@example.com")
        assert stack.calls[0].moved == ["sip:desk@example.com"]
        for refuse in (openai.realtime.calls.reject(call_id), openai.realtime.calls.accept(
            call_id, type="realtime"
        )):  # fmt: skip
            with pytest.raises(APIStatusError) as no:
                await refuse
            assert no.value.status_code == 501


async def test_other_keys_and_tokens_do_not_reach_a_call() -> None:
    async with serving(FakeStack(), api_keys=(ADMIN, OTHER)) as server:
        async with client(server, ADMIN) as openai:
            mine = await openai.realtime.client_secrets.create()
            theirs = await openai.realtime.client_secrets.create()
        async with caller() as c, caller() as d, httpx.AsyncClient() as http:

            async def hang_up(key: str, call_id: str) -> int:
                url = f"{server.url}/v1/realtime/calls/{call_id}/hangup"
                headers = {"authorization": f"Bearer {key}"}
                return (await http.post(url, headers=headers)).status_code

            first = await call(server, c, mine.value)
            second = await call(server, d, ADMIN)
            await c.until("session.created")
            await d.until("session.created")
            assert await hang_up(theirs.value, first) == 404
            assert await hang_up(mine.value, second) == 404
            assert await hang_up("nothing-that-is-known", first) == 401
            async with (
                client(server, theirs.value) as openai,
                openai.realtime.connect(call_id=first) as side,
            ):
                refused = await side.recv()
            assert refused.error.code == "call_not_found"
            assert await hang_up(mine.value, first) == 200
            assert await hang_up(OTHER, second) == 200, "these two may do everything"


async def test_a_secret_opens_sessions_as_they_were_laid_down() -> None:
    stack = FakeStack(agents=("default", "receptionist"))
    async with serving(stack, api_keys=(ADMIN,)) as server, client(server, ADMIN) as openai:
        secret = await openai.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60},
            session={"type": "realtime", "model": "receptionist", "instructions": "You sell hats."},
        )
        assert secret.value.startswith("ek_")
        assert secret.session.instructions == "You sell hats."
        free = await openai.realtime.client_secrets.create(
            session={"type": "realtime"}, extra_body={"changes": ["instructions"]}
        )
        async with client(server, secret.value) as page:
            async with page.realtime.connect(model="gpt-realtime") as connection:
                created = await connection.recv()
                await connection.recv()
                assert created.session.instructions == ""
                await connection.session.update(
                    session={"type": "realtime", "instructions": "Swear."}
                )
                assert (await connection.recv()).error.code == "not_allowed"
            with pytest.raises(APIStatusError) as no:
                await page.realtime.client_secrets.create()
            assert no.value.status_code == 400
        async with (
            client(server, free.value) as page,
            page.realtime.connect(model="gpt-realtime") as connection,
        ):
            await connection.session.update(session={"type": "realtime", "instructions": "Kind."})
            kinds = [(await connection.recv()).type for _ in range(3)]
            assert kinds[-1] == "session.updated"
        for body in (
            {"session": {"nonsense": 1}}, {"expires_after": {"seconds": 1}}, {"agent": "nobody"},
            {"changes": ["everything"]},
        ):  # fmt: skip
            with pytest.raises(APIStatusError) as bad:
                await openai.post("/realtime/client_secrets", body=body, cast_to=object)
            assert bad.value.status_code == 400
            assert bad.value.body["message"]  # type: ignore[index]
    assert [c.agent for c in stack.calls] == ["receptionist", "default"]
    assert stack.calls[0].updates == [{"instructions": "You sell hats."}]
