"""`voice-agent up` without a language model of its own: ready only when the endpoint answers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx2
import pytest

from tests.support.real_server import command
from tests.support.scripted_openai import ScriptedOpenAI
from voice_agent.models import default_root

pytestmark = pytest.mark.e2e

KEY = "sk-do-not-show-me"
ARGS = ["--port", "0", "--no-fetch", "--stt", "whisper-tiny.en", "--voice", "piper-joe"]


async def up(tmp_path: Path, base_url: str) -> asyncio.subprocess.Process:
    env = {
        **os.environ,
        "VOICE_AGENT_MODELS": str(default_root()),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "VOICE_AGENT__LLM__BACKEND": "openai",
        "VOICE_AGENT__LLM__BASE_URL": base_url,
        "VOICE_AGENT__LLM__MODEL": "far-model",
        "VOICE_AGENT__LLM__API_KEY": KEY,
        "VOICE_AGENT__LLM__FIRST_TOKEN_S": "20",
    }
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *command("up", *ARGS), cwd=tmp_path, env=env, stdout=pipe, stderr=pipe
    )


async def test_up_says_who_answers_and_is_ready_when_they_do(tmp_path: Path) -> None:
    server = ScriptedOpenAI()
    async with server.listening() as url:
        process = await up(tmp_path, url)
        try:
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            assert line.startswith("ready: "), (await process.communicate())[1].decode()
            async with httpx2.AsyncClient(base_url=line.split()[1]) as client:
                assert (await client.get("/readyz")).status_code == 200
                metrics = (await client.get("/metrics")).text
        finally:
            if process.returncode is None:
                process.terminate()
            err = (await process.communicate())[1].decode()
    assert process.returncode == 0, err
    assert f"far-model on {url}" in " ".join(err.split())
    assert "voice_agent_llm_first_down 0.0" in metrics
    assert "voice_agent_engine_" not in metrics, "no engine is loaded"
    assert [r["max_tokens"] for r in server.requests] == [1], "one warm-up for the one agent"
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in err


async def test_up_does_not_start_over_an_endpoint_that_does_not_answer(tmp_path: Path) -> None:
    process = await up(tmp_path, "http://127.0.0.1:9/v1")
    out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert b"VA485" in err
    assert b"VA481" in err
    assert b"Traceback" not in err
