"""A program of one's own, as a process: its models and its tool, a stock Realtime client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from openai import AsyncOpenAI

pytestmark = pytest.mark.e2e

PROGRAM = '''
import sys
import numpy as np
from voice_agent import Agent, serve, tool

@tool(read_only=True)
def weather(day: str) -> dict:
    """The weather of a day."""
    return {"sky": "clear", "day": day}

class Thinker:
    async def reply(self, messages, tools):
        assert [t["function"]["name"] for t in tools] == ["weather"]
        last = messages[-1]
        if last["role"] == "tool":
            assert messages[-2]["tool_calls"][0]["id"] == last["tool_call_id"]
            yield "I looked: "
            yield last["content"] + "."
        else:
            yield '<tool_call>{"name": "weather", "arguments": {"day": "'
            yield 'today"}}</tool_call>'

class Voice:
    sample_rate = 8000
    def speak(self, text):
        for word in text.split():
            yield np.full(400, 3000, np.int16)

class Recognizer:
    async def transcribe(self, sound):
        return "hello"

agent = Agent("Be brief.", name="shop", tools=(weather,), settings={"tools": {"fillers": []}})
serve(agent, port=0, recognizer=Recognizer(), voice=Voice(), thinker=Thinker())
'''


async def conversation(url: str) -> str:
    """What the agent said aloud in the end."""
    said = ""
    async with (
        AsyncOpenAI(
            api_key="none", base_url=f"{url}v1", websocket_base_url=f"ws{url[4:]}v1"
        ) as client,
        client.realtime.connect(model="shop") as connection,
    ):
        content = [{"type": "input_text", "text": "How is the weather?"}]
        item = {"type": "message", "role": "user", "content": content}
        await connection.conversation.item.create(item=item)  # type: ignore[arg-type]
        await connection.response.create()
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.output_audio_transcript.done":
                said = event.transcript
            if event.type == "response.done" and said:
                break
    return said


def test_a_tool_over_the_realtime_protocol(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM, "utf-8")
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": str(root), "VOICE_AGENT__MODELS__FETCH": "false"}
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path
    ) as process:
        stop = threading.Timer(120, process.kill)
        stop.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready: http://"), line
            said = asyncio.run(conversation(line.split()[1]))
        finally:
            process.terminate()
            process.wait()
            stop.cancel()
    assert said == 'I looked: {"sky": "clear", "day": "today"}.'
    assert process.returncode == 0
