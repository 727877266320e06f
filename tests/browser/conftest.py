"""Chromium, Node and playwright-core for the browser tests; without them they are skipped.

VOICE_AGENT_TEST_URL points the same tests at a server that is already running, and
VOICE_AGENT_TEST_WAV at the caller's recording: a question, a pause long enough for an answer to
begin, and more speech to interrupt it. It is played in a loop; the agent should talk at length.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fake_call import FakeStack
from tests.support.live_server import serving_on_thread
from tests.support.npm import node_with

HERE = Path(__file__).parent
CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))),
    None,
)


@pytest.fixture(scope="session")
def node() -> str:
    if CHROMIUM is None:
        pytest.skip("NOT RUN: needs chromium")
    return node_with(HERE, "playwright-core", "axe-core")


@pytest.fixture(scope="session")
def caller_wav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.8 s of silence, 1 s of noise in speech's place, 3 s of silence: played in a loop, the
    second round interrupts the answer to the first."""
    if given := os.environ.get("VOICE_AGENT_TEST_WAV"):
        return Path(given)
    path = tmp_path_factory.mktemp("wav") / "caller.wav"
    rate = 48_000
    pcm = np.zeros(int(rate * 4.8), np.int16)
    noise = np.random.default_rng(1).normal(0, 6000, rate)
    envelope = 0.6 + 0.4 * np.sin(2 * np.pi * 4 * np.arange(rate) / rate)
    pcm[int(rate * 0.8) : int(rate * 1.8)] = np.clip(noise * envelope, -30000, 30000)
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(pcm.tobytes())
    return path


@pytest.fixture
def server_url() -> Iterator[str]:
    if given := os.environ.get("VOICE_AGENT_TEST_URL"):
        yield given
        return
    stack = FakeStack(
        agents=("default", "receptionist"), reply_s=9.0,
        transcripts=("Could you tell me when the museum opens tomorrow?", "And on Sundays?"),
        reply_text="The museum opens at ten tomorrow morning, and the last tickets are sold at "
        "half past four. On Thursdays it stays open until nine in the evening.",
    )  # fmt: skip
    with serving_on_thread(stack) as server:
        yield server.url


@pytest.fixture
def drive(node: str, caller_wav: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    shots = Path(os.environ.get("VOICE_AGENT_SHOTS") or tmp_path)

    def run(url: str, scene: str, **options: Any) -> dict[str, Any]:
        order = {
            "url": url, "scene": scene, "chromium": CHROMIUM, "wav": str(caller_wav),
            "shots": str(shots), **options,
        }  # fmt: skip
        done = subprocess.run(
            [node, str(HERE / "drive.mjs"), json.dumps(order)],
            cwd=HERE, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        saw: dict[str, Any] = json.loads(done.stdout)
        assert "failure" not in saw, saw
        return saw

    return run
