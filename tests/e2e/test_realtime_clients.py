"""The official clients, unmodified, against the real server; docs/CONFORMANCE.md tells of it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import threading
import wave
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI

from tests.browser.conftest import CHROMIUM
from tests.e2e.test_realtime import Caller, ask, calling
from tests.support.clips import clip, plain
from tests.support.conformance import BROWSER, DOC, NODE, NPM, PYTHON, WRITES, Conformance
from tests.support.npm import node_with
from tests.support.real_server import RealServer
from tests.support.tls_proxy import tls_proxy
from voice_agent.audio import resample
from voice_agent.types import Pcm16

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parents[1] / "clients"
SHORT = "You are a friendly phone agent. Answer in one short sentence."
PRICE = {
    "type": "function", "name": "look_up_price", "description": "Looks up a price.",
    "parameters": {
        "type": "object", "properties": {"item": {"enum": ["tea", "cake"]}}, "required": ["item"],
        "additionalProperties": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def table() -> Iterator[Conformance]:
    """Written into the documentation at the end, if that was asked for."""
    collected = Conformance()
    collected.versions[PYTHON] = openai.__version__
    yield collected
    if WRITES:
        DOC.write_text(collected.page(), "utf-8")


@pytest.fixture(scope="module")
def node() -> str:
    """Node, with the clients installed beside the scripts."""
    return node_with(HERE, "@openai/agents-realtime", "playwright-core")


def version(package: str) -> str:
    text = (HERE / "node_modules" / package / "package.json").read_text("utf-8")
    return str(json.loads(text)["version"])


def drive(node: str, script: str, order: dict[str, Any], **env: str) -> dict[str, Any]:
    done = subprocess.run(
        [node, str(HERE / script), json.dumps(order)],
        cwd=HERE, capture_output=True, text=True, timeout=300, check=False, env=os.environ | env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    saw: dict[str, Any] = json.loads(done.stdout)
    assert "failure" not in saw, saw
    return saw


def words(response: Any) -> str:
    """All that a response says, spoken or written."""
    response = response if isinstance(response, dict) else response.to_dict()
    parts = [p for item in response["output"] for p in item.get("content") or []]
    return " ".join(p.get("text") or p.get("transcript") or "" for p in parts)


# ---------------------------------------------------------------- Python


async def answer(caller: Caller, text: str | None = None, **response: Any) -> Any:
    """The response to a typed message."""
    done = len(caller.of("response.done"))
    if text is not None:
        content = [{"type": "input_text", "text": text}]
        await caller.connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": content}
        )
    await caller.connection.response.create(response=response)
    return (await caller.until("response.done", done + 1)).response


async def update(caller: Caller, **session: Any) -> Any:
    n = len(caller.of("session.updated"))
    await caller.connection.session.update(session={"type": "realtime", **session})
    return (await caller.until("session.updated", n + 1)).session


async def test_python_turns_and_settings(real_server: RealServer, table: Conformance) -> None:
    async with calling(real_server) as caller:
        with table.feature(PYTHON, "session.update: instructions, voice, speed, token limit"):
            session = await update(
                caller, instructions=SHORT, max_output_tokens=60,
                audio={"output": {"voice": "marin", "speed": 1.2}},
            )  # fmt: skip
            assert (session.instructions, session.audio.output.speed) == (SHORT, 1.2)
        with table.feature(PYTHON, "spoken turn: speech marks, transcript, answer aloud"):
            heard, said, sound = await ask(caller, "ps_goforward")
            assert "forward" in plain(heard)
            assert said
            assert np.abs(sound.astype(np.int32)).max() > 3000
        with table.feature(PYTHON, "`rate_limits.updated`"):
            limit = caller.of("rate_limits.updated")[-1].rate_limits[0]
            assert limit.limit > limit.remaining >= 0
        with table.feature(PYTHON, "turn_detection null: commit, clear"):
            await update(caller, audio={"input": {"turn_detection": None}})
            caller.say(clip("ps_austen_0880"))
            await asyncio.sleep(len(clip("ps_austen_0880")) / 16_000 + 0.3)
            n = len(caller.of("input_audio_buffer.speech_started"))
            await caller.connection.input_audio_buffer.commit()
            done = await caller.until(
                "conversation.item.input_audio_transcription.completed",
                len(caller.of("conversation.item.input_audio_transcription.completed")) + 1,
            )
            assert "young" in plain(done.transcript)
            assert len(caller.of("input_audio_buffer.speech_started")) == n
            await caller.connection.input_audio_buffer.clear()
            await caller.until("input_audio_buffer.cleared")
        with table.feature(PYTHON, "idle_timeout_ms"):
            vad = {"type": "server_vad", "idle_timeout_ms": 1000}
            before = len(caller.of("input_audio_buffer.committed"))
            await update(caller, audio={"input": {"turn_detection": vad}})
            idle = await caller.until("input_audio_buffer.timeout_triggered")
            done = len(caller.of("response.done"))
            committed = await caller.until("input_audio_buffer.committed", before + 1)
            assert committed.item_id == idle.item_id
            await caller.until("response.done", done + 1)
        with table.feature(PYTHON, "errors in the protocol's shape, with event_id"):
            await caller.connection.send(
                {"type": "conversation.item.delete", "item_id": "none", "event_id": "mine"}
            )
            error = (await caller.until("error")).error
            assert (error.type, error.event_id) == ("invalid_request_error", "mine")
            assert (error.code, error.param) == ("item_not_found", "item_id")


async def test_python_responses_and_items(real_server: RealServer, table: Conformance) -> None:
    async with calling(real_server) as caller:
        await update(caller, instructions=SHORT, audio={"input": {"turn_detection": None}},
                     output_modalities=["text"], tools=[PRICE])  # fmt: skip
        with table.feature(PYTHON, "text answers, metadata, a limit that ends them"):
            response = await answer(
                caller, "Tell me about the sea.", max_output_tokens=8, metadata={"a": "b"}
            )
            assert (response.status, response.metadata) == ("incomplete", {"a": "b"})
            assert response.status_details.reason == "max_output_tokens"
            assert response.usage.output_tokens == 8
            assert response.output[0].content[0].type == "output_text"
        with table.feature(PYTHON, "function call round trip, tool_choice by name"):
            choice = {"type": "function", "name": "look_up_price"}
            called = await answer(caller, "What is the price of cake?", tool_choice=choice)
            (call,) = [item for item in called.output if item.type == "function_call"]
            assert json.loads(call.arguments)["item"] in ("tea", "cake")
            await caller.connection.conversation.item.create(
                item={"type": "function_call_output", "call_id": call.call_id,
                      "output": "It costs seventeen pounds."},
            )  # fmt: skip
            told = await answer(caller)
            assert told.status == "completed"
            assert words(told).strip()
            assert told.usage.input_tokens > called.usage.input_tokens
        with table.feature(PYTHON, "response beside the conversation"):
            beside = await answer(
                caller, None, conversation="none", instructions="Answer yes or no.",
                input=[{"type": "message", "role": "user",
                        "content": [{"type": "input_text", "text": "Is tea a drink?"}]}],
            )  # fmt: skip
            assert beside.conversation_id is None
            assert beside.usage.input_tokens < told.usage.input_tokens
            assert words(beside).strip()
        with table.feature(PYTHON, "items: create at a place, retrieve, delete"):
            await caller.connection.conversation.item.create(
                previous_item_id="root",
                item={"type": "message", "role": "user", "id": "first",
                      "content": [{"type": "input_text", "text": "word " * 40}]},
            )  # fmt: skip
            longer = await answer(caller, None, max_output_tokens=1)
            await caller.connection.conversation.item.retrieve(item_id="first")
            got = (await caller.until("conversation.item.retrieved")).item
            assert got.content[0].text.startswith("word word")
            await caller.connection.conversation.item.delete(item_id="first")
            await caller.until("conversation.item.deleted")
            shorter = await answer(caller, None, max_output_tokens=1)
            assert shorter.usage.input_tokens < longer.usage.input_tokens - 30
        with table.feature(PYTHON, "pcma both ways"):
            pcma = {"format": {"type": "audio/pcma"}}
            await update(caller, output_modalities=["audio"], audio={"output": pcma})
            spoken = await answer(caller, "Say good morning.")
            sound = b"".join(
                base64.b64decode(e.delta)
                for e in caller.of("response.output_audio.delta")
                if e.response_id == spoken.id
            )
            assert spoken.audio.output.format.type == "audio/pcma"
            assert len(sound) > 4000, "half a second at 8 kHz"


async def test_python_truncation_cuts_what_is_computed(
    real_server: RealServer, table: Conformance
) -> None:
    async with calling(real_server) as caller:
        deltas = len(caller.of("response.output_audio.delta"))
        story = asyncio.ensure_future(answer(caller, "Tell me a long story about a lighthouse."))
        await caller.until("response.output_audio.delta", deltas + 150)
        with table.feature(PYTHON, "response.cancel"):
            await caller.connection.response.cancel()
            cut = await story
            assert cut.status_details.reason == "client_cancelled"
        with table.feature(PYTHON, "truncate cuts text, history and what is computed of it"):
            item = cut.output[0].id
            await caller.connection.conversation.item.truncate(
                item_id=item, content_index=0, audio_end_ms=60_000
            )
            assert (await caller.until("error")).error.param == "audio_end_ms"
            before = await answer(caller, None, output_modalities=["text"], max_output_tokens=1)
            await caller.connection.conversation.item.retrieve(item_id=item)
            await caller.connection.conversation.item.delete(item_id=before.output[0].id)
            told = (await caller.until("conversation.item.retrieved")).item.content[0].transcript
            assert told, "what was sent"
        story = asyncio.ensure_future(answer(caller, "Now one about a ship."))
        deltas = len(caller.of("response.output_audio.delta"))
        await caller.until("response.output_audio.delta", deltas + 150)
        await caller.connection.response.cancel()
        second = await story
        with table.feature(PYTHON, "truncate cuts text, history and what is computed of it"):
            await caller.connection.conversation.item.truncate(
                item_id=second.output[0].id, content_index=0, audio_end_ms=700
            )
            await caller.until("conversation.item.truncated")
            await caller.connection.conversation.item.retrieve(item_id=second.output[0].id)
            left = (await caller.until("conversation.item.retrieved", 2)).item.content[0].transcript
            assert words(second).startswith(left)
            assert len(left.split()) <= 4, "0.7 s of speech"
            after = await answer(caller, None, output_modalities=["text"], max_output_tokens=1)
            grown = after.usage.input_tokens - second.usage.input_tokens
            assert 0 <= grown <= len(left.split()) * 3 + 4, "no more than the words left"
            assert after.usage.input_token_details.cached_tokens >= second.usage.input_tokens - 1


async def test_python_secret(real_server: RealServer, table: Conformance) -> None:
    client = AsyncOpenAI(
        api_key="local",
        base_url=f"{real_server.http}/v1",
        websocket_base_url=f"{real_server.ws}/v1",
    )
    async with client:
        with table.feature(PYTHON, "client secret"):
            secret = await client.realtime.client_secrets.create(
                session={"type": "realtime", "instructions": SHORT}
            )
            client.api_key = secret.value
            async with client.realtime.connect(model="default") as connection:
                created = await connection.recv()
                assert (created.type, created.session.instructions) == ("session.created", "")


# ---------------------------------------------------------------- JavaScript


def raw(folder: Path, name: str) -> str:
    path = folder / f"{name}.raw"
    path.write_bytes(resample(clip(name), 16_000, 24_000).astype("<i2").tobytes())
    return str(path)


def test_agents_sdk_over_websocket(
    real_server: RealServer, node: str, table: Conformance, tmp_path: Path
) -> None:
    table.versions[NODE] = version("@openai/agents-realtime")
    saw = drive(node, "agents_ws.mjs", {
        "url": f"{real_server.ws}/v1/realtime?model=default", "key": "local", "greets": True,
        "question": raw(tmp_path, "ps_goforward"), "second": raw(tmp_path, "ps_something"),
        "tools": True, "timeout": 120_000,
    })  # fmt: skip
    assert saw["errors"] == []
    with table.feature(NODE, "session.update: instructions, voice, speed, token limit"):
        assert saw["events"]["session.updated"] >= 1
    with table.feature(NODE, "spoken turn: speech marks, transcript, answer aloud"):
        assert saw["answer"]["status"] == "completed"
        assert saw["heard_bytes"] > 24_000
    with table.feature(NODE, "barge-in: turn_detected, the client stops playing"):
        assert saw["cut"]["status_details"]["reason"] == "turn_detected"
        assert saw["interruptions"] >= 1
    with table.feature(NODE, "function call round trip, tool_choice required"):
        assert saw["asked"]
        assert words(saw["after_tool"]).strip()
    with table.feature(NODE, "items: history put back by the client"):
        assert saw["events"]["conversation.item.deleted"] >= 1


def test_npm_openai_over_wss(
    real_server: RealServer, node: str, table: Conformance, tmp_path: Path
) -> None:
    table.versions[NPM] = version("openai")
    with tls_proxy(real_server.port, tmp_path) as proxy:
        saw = drive(
            node, "npm_openai.mjs", {
                "port": proxy.port, "key": "local", "greets": True,
                "question": raw(tmp_path, "ps_goforward"),
            },
            NODE_EXTRA_CA_CERTS=str(proxy.certificate),
        )  # fmt: skip
    with table.feature(NPM, "session.update: instructions, tools, pcmu"):
        assert saw["updated"]["audio"]["output"]["format"] == {"type": "audio/pcmu"}
        assert saw["updated"]["tools"][0]["name"] == "look_up_price"
    with table.feature(NPM, "spoken turn: speech marks, transcript, answer aloud"):
        assert "meters" in saw["heard"].lower()
        assert saw["answered"]["status"] in ("completed", "incomplete")  # or 60 tokens long
        assert saw["answered"]["output"][0]["content"][0]["transcript"].strip()
    with table.feature(NPM, "truncate cuts text and history"):
        assert saw["truncated"]["audio_end_ms"] <= 200
        said = saw["spoken"]["output"][0]["content"][0]["transcript"]
        assert said.startswith(saw["left"])
        assert len(saw["left"].split()) <= 2 < len(said.split())  # 0.2 s of speech
    with table.feature(NPM, "response.cancel"):
        assert saw["cancelled"]["status"] == "cancelled"
    with table.feature(NPM, "typed message answered aloud in pcmu"):
        assert saw["spoken"]["status"] == "completed"
        assert saw["telephone_bytes"] > 2000
    with table.feature(NPM, "text answers, metadata"):
        assert saw["text"]["output"][0]["content"][0]["type"] == "output_text"
        assert saw["text"]["metadata"] == {"kind": "colour"}
    with table.feature(NPM, "function call round trip, tool_choice by name"):
        call = next(i for i in saw["called"]["output"] if i["type"] == "function_call")
        assert json.loads(call["arguments"])["item"] in ("tea", "cake")
        assert words(saw["told"]).strip()
    with table.feature(NPM, "response beside the conversation"):
        assert saw["beside"]["conversation_id"] is None
    with table.feature(NPM, "errors in the protocol's shape, with event_id"):
        assert saw["error"]["event_id"] == "mine"
        assert saw["error"]["code"] == "item_not_found"
        assert len(saw["errors"]) == 1
    with table.feature(NPM, "client secret"):
        assert saw["secret"] == "ek_"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


def microphone(path: Path, question: Pcm16) -> None:
    """Nine seconds for the greeting, the question, and then a quiet room."""
    pcm = np.concatenate(
        [np.zeros(9 * 16_000, np.int16), question, np.zeros(90 * 16_000, np.int16)]
    )
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(48_000)
        out.writeframes(resample(pcm, 16_000, 48_000).astype("<i2").tobytes())


@pytest.mark.skipif(CHROMIUM is None, reason="NOT RUN: needs chromium")
def test_agents_sdk_over_webrtc_in_chromium(
    real_server: RealServer, node: str, table: Conformance, tmp_path: Path
) -> None:
    table.versions[BROWSER] = version("@openai/agents-realtime")
    microphone(tmp_path / "caller.wav", clip("ps_goforward"))
    web = ThreadingHTTPServer(
        ("127.0.0.1", real_server.page_port), partial(Quiet, directory=str(HERE))
    )
    threading.Thread(target=web.serve_forever).start()
    try:
        saw = drive(node, "agents_webrtc.mjs", {
            "page": f"http://127.0.0.1:{real_server.page_port}/page.html",
            "url": f"{real_server.http}/v1/realtime/calls", "side": f"{real_server.ws}/v1/realtime",
            "key": "local", "chromium": CHROMIUM, "wav": str(tmp_path / "caller.wav"),
        })  # fmt: skip
    finally:
        web.shutdown()
        web.server_close()
    assert saw["errors"] == saw["client_errors"] == []
    with table.feature(BROWSER, "calls by SDP from a page elsewhere, session.update"):
        assert saw["call_id"].startswith("rtc_")
        assert saw["updated"]["instructions"] == SHORT
    with table.feature(BROWSER, "spoken turn: speech marks, transcript, answer aloud"):
        assert "forward" in plain(saw["transcript"])
        assert saw["loudest"] > 0.05
    with table.feature(BROWSER, "the client cuts the answer: output_audio_buffer, truncated"):
        assert saw["cut"]["status_details"]["reason"] == "client_cancelled"
        assert saw["cleared"]["response_id"] == saw["cut"]["id"]
        assert 300 < saw["truncated"]["audio_end_ms"] < 20_000
    with table.feature(BROWSER, "function call round trip, tool_choice required"):
        assert saw["asked"]
        assert set(saw["asked"]) <= {"art", "cars"}
        assert words(saw["after_tool"]).strip()
    with table.feature(BROWSER, "a further connection by call_id"):
        assert {"session.created", "response.done"} <= set(saw["side"])
    with table.feature(BROWSER, "hangup"):
        assert saw["hangup"] == 200
        assert saw["disconnected"]
