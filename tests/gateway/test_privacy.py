"""No key, token or word of a call in the log, however much is logged."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import websockets

from tests.support.fake_call import FakeStack, tone
from tests.support.live_server import serving
from voice_agent import logs

pytestmark = pytest.mark.unit
KEY, WRONG = "a-secret-key-for-this-test", "a-wrong-key-for-this-test"
SAID, ANSWERED, TYPED = "my pin is fourteen ninety two", "your balance is nine", "typed secret"


def test_no_library_reports_home() -> None:
    """ONNX Runtime keeps what it would send in a file of its own."""
    script = (
        "import os, voice_agent, onnxruntime\n"
        "links = [f'/proc/self/fd/{f}' for f in os.listdir('/proc/self/fd')]\n"
        "print([os.readlink(p) for p in links if os.path.exists(p) and 'onnx' in os.readlink(p)])"
    )
    env = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    logs.setup("json", "DEBUG", stream)
    yield stream
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


async def test_nothing_said_and_no_secret_is_logged(log: io.StringIO) -> None:
    stack = FakeStack(transcripts=(SAID,), reply_text=ANSWERED)
    seen: list[str] = []
    async with serving(stack, api_keys=(KEY,)) as server, httpx.AsyncClient() as client:
        for key in (KEY, WRONG):
            bearer = {"authorization": f"Bearer {key}"}
            answer = await client.post(f"{server.url}/api/token", headers=bearer)
            await client.post(f"{server.url}/rtc/offer", headers=bearer, content=TYPED)
            if key == KEY:
                token = answer.json()["token"]
        async with websockets.connect(
            f"{server.ws}/v1/realtime",
            subprotocols=[websockets.Subprotocol(f"openai-insecure-api-key.{KEY}")],
        ) as socket:
            loud = tone(24_000).astype("<i2")
            pcm = np.concatenate([loud, np.zeros(24_000, "<i2")]).tobytes()
            audio = base64.b64encode(pcm).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            await socket.send(TYPED)
            await socket.send(json.dumps({"type": TYPED, TYPED: TYPED}))
            async for message in socket:
                seen.append(str(message))
                if json.loads(message)["type"] == "response.done":
                    break
    text = log.getvalue()
    assert any(SAID in message for message in seen), "the call was held"
    assert logging.getLogger().level == logging.DEBUG
    logging.getLogger("probe").debug("the log works")
    assert "the log works" in log.getvalue()
    for secret in (KEY, WRONG, token, SAID, ANSWERED, TYPED, audio[:40]):
        assert secret not in text, secret
