"""`voice-agent up` as a process, from ready to drained: what an operator does with it meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.support.metric_names import exposed, promised
from voice_agent.models import default_root

pytestmark = pytest.mark.e2e

MODELS = ["--stt", "whisper-tiny.en", "--llm", "smollm2-135m", "--voice", "piper-joe"]
CONFIG = """
[server]
max_calls = 2
drain_s = 60
[log]
format = "json"
[engine]
kv_mb = 64
"""


class Up:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "voice-agent.toml"
        self.config.write_text(CONFIG)
        self.env = {
            **os.environ,
            "VOICE_AGENT_MODELS": str(default_root()),
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        self.process = subprocess.Popen(
            self._command("up", "--port", "0", "--no-fetch", *MODELS),
            cwd=folder, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.url = ""

    @staticmethod
    def _command(*args: str) -> list[str]:
        return [sys.executable, "-m", "voice_agent.cli", *args]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def ask(self, *args: str) -> subprocess.CompletedProcess[str]:
        """One of our own commands about the running server."""
        return subprocess.run(
            self._command(*args, "--server", self.url),
            cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def call(self) -> connect:
        return connect(f"ws{self.url[4:]}/v1/realtime?model=default")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Up]:
    up = Up(tmp_path)
    yield up
    up.process.kill()
    up.process.communicate()


def test_a_servers_life(server: Up) -> None:
    assert server.process.stdout is not None
    line = server.process.stdout.readline()
    assert line.startswith("ready: http://localhost:"), line
    server.url = line.split()[1].rstrip("/")
    assert server.get("/readyz") == (200, '{"status":"ready"}')
    assert "<html" in server.get("/")[1].lower()
    the_metrics_are_those_of_the_page(server)
    seen = json.loads(server.ask("top", "--json").stdout)
    assert (seen["ready"], seen["calls"]["limit"]) == (True, 2)
    the_configuration_is_read_again(server)
    a_live_call_finishes(server)
    out, err = server.process.communicate(timeout=60)
    assert server.process.returncode == 0, err
    assert out == ""
    assert "whisper-tiny.en" in err
    assert "smollm2-135m" in err
    assert "Traceback" not in err
    assert "draining: no new calls" in err


def the_metrics_are_those_of_the_page(server: Up) -> None:
    found, page = exposed(server.get("/metrics")[1]), promised()
    assert {n: k for n, k in found.items() if n not in page} == {}, "not in docs/METRICS.md"
    assert {n: k for n, k in found.items() if page[n].kind != k} == {}, "of another kind there"
    missing = {name for name, promise in page.items() if promise.always} - found.keys()
    assert missing == set(), "in docs/METRICS.md only"


def the_configuration_is_read_again(server: Up) -> None:
    server.config.write_text(CONFIG.replace("max_calls = 2", "max_calls = 1\nport = 1"))
    server.process.send_signal(signal.SIGHUP)  # the flag --port goes before the file's
    while json.loads(server.get("/api/ops")[1])["calls"]["limit"] != 1:
        pass
    server.config.write_text(CONFIG.replace("max_calls = 2", "max_calls = many"))
    refused = server.ask("reload", "--config", os.devnull)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "VA432" in refused.stderr or "VA430" in refused.stderr
    assert str(server.config.name) in refused.stderr
    assert json.loads(server.get("/api/ops")[1])["calls"]["limit"] == 1
    server.config.write_text(CONFIG.replace("kv_mb = 64", "kv_mb = 65"))
    told = server.ask("reload")
    assert told.stdout == (
        "for new calls: server.max_calls\nonly after a restart: engine.kv_mb\n"
    ), told


def a_live_call_finishes(server: Up) -> None:
    with server.call() as call:
        assert json.loads(call.recv(20))["type"] == "session.created"
        drained = server.ask("drain")
        assert drained.stdout.startswith("draining: no new calls; 1 live, which may take 60 s")
        assert server.get("/readyz") == (503, '{"status":"draining"}')
        with server.call() as late:
            assert json.loads(late.recv(20))["error"]["code"] == "VA461"
        server.process.send_signal(signal.SIGTERM)  # as a supervisor does it next
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Say hello."}],
        }
        call.send(json.dumps({"type": "conversation.item.create", "item": item}))
        call.send(json.dumps({"type": "response.create"}))
        types: list[str] = []
        while "response.output_audio.delta" not in types:
            types.append(json.loads(call.recv(30))["type"])
        assert server.process.poll() is None
