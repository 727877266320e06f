"""A server as a process group: started, frozen while others are measured, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.bench.peers.settings import HERE, Setting, model_file, python


class ServerFailed(Exception):
    """The server ended or never answered; the message holds its last words."""


class ServerProcess:
    """Owns the process group. `freeze` stops it dead, so that an idle server costs nothing."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.port = port
        self._log = Path(tempfile.mkstemp(prefix="server-", suffix=".log")[1])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env, start_new_session=True, cwd="/"
            )

    def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Blocks until the server lists its models. Raises `ServerFailed`."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.name} ended: {self._last_words()}")
            try:
                if self.get("/v1/models"):
                    return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        raise ServerFailed(f"{self.name} did not answer: {self._last_words()}")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
            return str(answer.read().decode())

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text("utf-8", "replace")

    def close(self) -> None:
        """End the group. Idempotent."""
        self.thaw()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait(5)
        self._log.unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        return self.log()[-400:].strip()


def peer_server(
    setting: Setting, model: str, *, threads: int, slots: int, context: int
) -> ServerProcess:
    """context: tokens of one request."""
    port = free_port()
    command = [
        str(python(setting.peer)), str(HERE / setting.peer / "server.py"),
        str(model_file(model, setting.file)), "--port", str(port), "--threads", str(threads),
        "--slots", str(slots), "--context", str(context), "--setting", setting.argument,
    ]  # fmt: skip
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_", "PYTHON"))}
    return ServerProcess(setting.name, command, port, env)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
