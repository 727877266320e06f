"""`voice-agent up` as a process: ready only when it answers, and a clean end on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from voice_agent.models import default_root

pytestmark = pytest.mark.e2e

MODELS = ["--stt", "whisper-tiny.en", "--llm", "smollm2-135m", "--voice", "piper-joe"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    env = {
        **os.environ,
        "VOICE_AGENT_MODELS": str(default_root()),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "VOICE_AGENT__ENGINE__KV_MB": "64",
    }
    argv = [sys.executable, "-m", "voice_agent.cli", "up", "--port", "0", "--no-fetch"]
    with subprocess.Popen(
        [*argv, *MODELS, "--log", "json"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_up_answers_when_it_says_so_and_ends_cleanly(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("ready: http://localhost:"), (
        line,
        server.stderr and server.stderr.read(),
    )
    url = line.split()[1]
    with urllib.request.urlopen(url + "readyz", timeout=10) as answer:
        assert json.load(answer) == {"status": "ready"}
    with urllib.request.urlopen(url, timeout=10) as page:
        assert b"<html" in page.read().lower()
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    assert out == ""
    assert "whisper-tiny.en" in err
    assert "smollm2-135m" in err
    assert "Traceback" not in err
