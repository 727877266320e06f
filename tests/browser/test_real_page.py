"""The page in headless Chromium against the real server: a recorded person asks and cuts in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.clips import clip, plain, room
from tests.support.real_server import RealServer
from tests.support.real_server import real_server as start_real_server
from voice_agent.audio import resample, write_wav
from voice_agent.types import IN_RATE

pytestmark = [pytest.mark.browser, pytest.mark.e2e]


def test_a_person_asks_is_answered_and_interrupts(
    drive: Callable[..., dict[str, Any]], real_server: RealServer, tmp_path: Path
) -> None:
    wav = tmp_path / "person.wav"
    question, cut_in = clip("ps_something"), clip("ps_goforward")
    # with the clips' own silence 1.8 s lie between the last and the first word: amid the answer
    parts = [room(5.0), question, room(0.55), cut_in, room(12.0)]
    write_wav(wav, resample(np.concatenate(parts), IN_RATE, 48_000), 48_000)
    saw = drive(real_server.http, "call", wav=str(wav), width=1280, height=800, timeout=60_000)
    assert saw["connected"]
    assert "something" in plain(saw["transcripts"][0])
    assert saw["agent_rms"] > 0.01
    assert saw["heard_while_speaking"]
    assert saw["barge_in"]["heard"]
    assert saw["barge_in"]["quiet_ms"] > 600, "the voice stopped when the caller cut in"
    assert "ms from your last sound" in saw["trace"]
    assert saw["console_errors"] == []
    assert saw["requests_elsewhere"] == []
    assert saw["ended"] == "Call ended"


@pytest.mark.slow
def test_a_worker_is_killed_in_the_midst_of_a_story_and_the_story_goes_on(
    drive: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    wav = tmp_path / "silence.wav"
    write_wav(wav, np.zeros(48_000, np.int16), 48_000)
    with start_real_server(tmp_path, "--media-workers", "1") as server:
        (worker,) = [
            child
            for child in psutil.Process(server.pid).children(recursive=True)
            if "gateway.workers" in child.cmdline()
        ]
        options = {"write": "Tell me a story.", "kill": worker.pid, "timeout": 60_000}
        saw = drive(server.http, "resume", wav=str(wav), **options)
        metrics = server.get("/metrics")
    assert "Reconnecting: your call is kept…" in saw["statuses"]
    assert saw["agent_rms"] > 0.01
    assert saw["heard_after"].startswith(saw["heard_before"])
    assert saw["replies"] == saw["replies_before"], "it is the same reply"
    assert saw["answered"], "and the call goes on after it"
    assert saw["console_errors"] == []
    assert 'voice_agent_line_losses_total{what="resumed"} 1.0' in metrics
    assert 'reason="caller_hung_up",transport="webrtc"} 1.0' in metrics
