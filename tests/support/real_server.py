"""`voice-agent up` as a process of its own, with the small real models."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STORYTELLER = """
instructions = "You are a storyteller on the phone. Answer with a long story of ten sentences."
greeting = "Hello! What shall I tell you?"
goodbye = "Goodbye."
[limits]
max_reply_tokens = 220
"""
START_WITHIN_S = 300  # a busy machine loads slowly; never asserted, only given up on


@dataclass(frozen=True)
class RealServer:
    """page_port: of a page on this machine that may call the server. history: where it remembers
    its calls. pid: of its process."""

    port: int
    log: Path
    page_port: int
    history: str
    pid: int

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.http + path, timeout=10) as answer:
            return str(answer.read().decode())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "voice_agent.cli", *args]


@contextlib.contextmanager
def real_server(folder: Path, *more: str) -> Iterator[RealServer]:
    """more: options of `voice-agent up`."""
    agents = folder / "agents"
    agents.mkdir()
    (agents / "default.toml").write_text(STORYTELLER, "utf-8")
    port = free_port()
    page_port = free_port()
    log = folder / "server.log"
    history = f"sqlite:///{folder / 'history.db'}"
    env = os.environ | {
        "VOICE_AGENT__SERVER__ALLOWED_HOSTS": "127.0.0.1",
        "VOICE_AGENT__SERVER__ALLOWED_ORIGINS": f"http://127.0.0.1:{page_port}",
        "VOICE_AGENT__AGENTS_DIR": str(agents),
        "VOICE_AGENT__SERVER__MAX_CALLS": "3",
        "VOICE_AGENT__SERVER__DRAIN_S": "2",  # a call whose page went away waits for it
        "VOICE_AGENT__LOAD__ADMIT_MS": "60000",  # a machine that is busy with other things
        "VOICE_AGENT__HISTORY__ENABLED": "true",
        "VOICE_AGENT__HISTORY__URL": history,
    }
    models = ["--llm", "smollm2-135m", "--stt", "whisper-tiny.en", "--voice", "piper-joe"]
    with log.open("w") as out:
        process = subprocess.Popen(
            command("up", "--port", str(port), "--no-fetch", *models, *more),
            stdout=out, stderr=subprocess.STDOUT, env=env, cwd=folder,
        )  # fmt: skip
    server = RealServer(port, log, page_port, history, process.pid)
    try:
        _wait_ready(process, server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], server: RealServer) -> None:
    give_up = time.monotonic() + START_WITHIN_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {server.log.read_text()[-3000:]}")
        with contextlib.suppress(OSError):
            server.get("/readyz")
            return
        time.sleep(0.2)
    raise RuntimeError(f"the server is not ready: {server.log.read_text()[-3000:]}")
