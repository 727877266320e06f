"""A peer's server as a process group: started, frozen while others are measured, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from loadtest.bench.peers.settings import HERE, Setting, model_file, python


class PeerFailed(Exception):
    """The server ended or never answered; the message holds its last words."""


class PeerServer:
    """Owns the process group. `freeze` stops it dead, so that an idle peer costs nothing."""

    def __init__(
        self, setting: Setting, model: str, *, threads: int, slots: int, context: int
    ) -> None:
        self.setting = setting
        self.port = _free_port()
        self._log = Path(tempfile.mkstemp(prefix="peer-", suffix=".log")[1])
        command = [
            str(python(setting.peer)), str(HERE / setting.peer / "server.py"),
            str(model_file(model, setting.file)), "--port", str(self.port),
            "--threads", str(threads), "--slots", str(slots), "--context", str(context),
            "--setting", setting.argument,
        ]  # fmt: skip
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_", "PYTHON"))}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env, start_new_session=True, cwd="/"
            )

    def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Blocks until the server answers. Raises `PeerFailed`."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise PeerFailed(f"{self.setting.name} ended: {self._last_words()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise PeerFailed(f"{self.setting.name} did not answer: {self._last_words()}")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

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
        return self._log.read_text("utf-8", "replace")[-400:].strip()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
