"""A call over a real socket to the real server is in the history, without a word of it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from openai import AsyncOpenAI

from tests.support.clips import clip
from tests.support.history import GIVE_UP_S, rows, wait_until
from tests.support.real_server import RealServer, command
from voice_agent.audio import resample

pytestmark = pytest.mark.e2e


async def hold_a_call(server: RealServer) -> str:
    """One spoken turn, then the caller hangs up; what they were understood to say."""
    client = AsyncOpenAI(
        api_key="local", base_url=f"{server.http}/v1", websocket_base_url=f"{server.ws}/v1"
    )
    speech = np.pad(resample(clip("ps_goforward"), 16_000, 24_000), (0, 36_000))
    said = ""
    async with asyncio.timeout(GIVE_UP_S), client.realtime.connect(model="default") as call, client:
        responses = 0
        async for event in call:
            if event.type == "conversation.item.input_audio_transcription.completed":
                said = event.transcript
            responses += event.type == "response.done"
            if event.type == "response.done" and responses == 1:  # the greeting
                for part in np.split(speech, range(4800, len(speech), 4800)):
                    audio = base64.b64encode(part.astype("<i2").tobytes()).decode()
                    await call.input_audio_buffer.append(audio=audio)
            if responses == 1 and event.type == "response.output_audio.delta" and said:
                break  # in the middle of the answer
    return said


def calls(server: RealServer, *args: str) -> str:
    env = os.environ | {"VOICE_AGENT__HISTORY__URL": server.history, "COLUMNS": "200"}
    done = subprocess.run(command("calls", *args), capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_call_is_remembered_by_its_trace_alone(real_server: RealServer) -> None:
    file = Path(real_server.history.removeprefix("sqlite:///"))
    before = {name for (name,) in rows(file, "SELECT id FROM calls")}
    said = asyncio.run(hold_a_call(real_server))
    assert len(said.split()) >= 3
    ended = "SELECT id FROM calls WHERE outcome IS NOT NULL"
    wait_until(lambda: bool({name for (name,) in rows(file, ended)} - before))
    (one,) = [c for c in json.loads(calls(real_server, "export")) if c["id"] not in before]
    assert (one["transport"], one["agent"], one["outcome"]) == (
        "realtime", "default", "caller_hung_up",
    )  # fmt: skip
    turn = next(t for t in one["turns"] if t["stages"])
    assert turn["call"] == one["id"]
    assert turn["voice_to_voice_ms"] > 0
    assert turn["model"] == "smollm2-135m"
    assert (turn["transcript"], turn["reply_text"], turn["heard"]) == ("", "", "")
    assert said not in json.dumps(one)
    assert one["id"] in calls(real_server, "list")
    assert turn["outcome"] in calls(real_server, "show", one["id"][:8])
    metrics = real_server.get("/metrics")
    assert "voice_agent_history_up 1.0" in metrics
    assert "voice_agent_history_dropped_total 0.0" in metrics
