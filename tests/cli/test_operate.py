"""`voice-agent top`, `drain` and `reload` against a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving_on_thread
from voice_agent.cli.app import app
from voice_agent.cli.top import screen
from voice_agent.errors import UsageError
from voice_agent.reload import Reloaded

pytestmark = pytest.mark.unit
KEY = "correct horse battery staple"


class Operated:
    """Stands for the process's own controls."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []
        self.problem: UsageError | None = None

    def drain(self, seconds: float | None = None) -> float:
        self.asked.append(seconds)
        return 30.0 if seconds is None else seconds

    def reload(self) -> Reloaded:
        if self.problem is not None:
            raise self.problem
        return Reloaded(("server.max_calls",), ("server.port",))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("VOICE_AGENT_CONFIG", raising=False)


@pytest.fixture
def server() -> Iterator[Running]:
    with serving_on_thread(FakeStack(), api_keys=(KEY,)) as running:
        running.gateway.controls = Operated()
        yield running


def run(server: Running, *args: str, key: str = KEY) -> Result:
    return CliRunner().invoke(app, [*args, "--server", server.url, "--key", key])


def test_one_look(server: Running) -> None:
    seen = run(server, "top", "--once")
    assert seen.exit_code == 0, seen.output
    assert f"ready  {server.url}  calls 0 of 8  turned away 0" in seen.output
    assert "nobody is on the line" in seen.output
    assert "Language model" in seen.output


def test_the_same_data_as_json(server: Running) -> None:
    seen = run(server, "top", "--json")
    assert json.loads(seen.output)["calls"] == {"live": 0, "limit": 8, "refused": 0}


def test_a_look_at_live_calls_and_memory() -> None:
    call = {
        "id": "rtc_1", "transport": "webrtc", "agent": "desk", "caller": "speaking",
        "floor": "idle", "age_s": 83.4, "turns": 3, "voice_to_voice_ms": 481.6,
        "kept_s": None,
    }  # fmt: skip
    names = ("total", "free", "cached", "held", "pinned", "fenced")
    seen = {
        "ready": False, "draining": True, "early_work": "none: busy",
        "calls": {"live": 2, "limit": 4, "refused": 1},
        "kv": dict(zip(names, (100, 40, 40, 20, 10, 0), strict=True)),
        "live": [call, {**call, "voice_to_voice_ms": None, "agent": "", "kept_s": 24.3}],
        "waiting": [
            {"place": 1, "waited_s": 21.0, "wait_s": 0.0, "line_kept": True},
            {"place": 2, "waited_s": 8.0, "wait_s": 33.4, "line_kept": False},
        ],
        "load": {
            "stopped": "early voice", "answer_ms": 512, "with_one_more_ms": 640, "waiting": 3,
            "stages": {"stt": 40, "engine": 71},
            "decisions": [
                {"ago_s": 2.4, "transport": "sip", "taken": False, "why": "latency", "live": 2},
                {"ago_s": 9.0, "transport": "webrtc", "taken": True, "why": "", "live": 1},
            ],
        },
        "stages": {"Voice": {"queued": 2.0, "busy_seconds": 1234.5}},
    }  # fmt: skip
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(screen(seen, "http://a"))
    text = console.export_text()
    assert "draining  http://a  calls 2 of 4  turned away 1  early work none: busy" in text
    assert "stopped early voice  answer 512 ms predicted, 640 ms with one call more" in text
    assert "waiting 3  stt 40 %, engine 71 %" in text
    assert "queue: 21 s (a line is kept), 8 s (about 33 s more)" in text
    assert "line lost, kept 24 s" in text
    assert "2 s ago: sip turned away: latency" in text
    assert "webrtc turned away" not in text
    assert "1:23" in text
    assert "482 ms" in text
    assert "busy seconds  1,234.5" in text
    bar = next(line for line in text.splitlines() if line.startswith("KV "))
    assert bar.count("█") == 24, "pinned blocks are among the others: 10 + 20 + 30 of 100"
    assert "100 blocks: 40 free, 10 pinned, 20 held, 40 cached, 0 fenced" in bar


def test_drain(server: Running) -> None:
    told = run(server, "drain")
    assert told.output == "draining: no new calls; 0 live, which may take 30 s\n"
    told = run(server, "drain", "--seconds", "5")
    assert told.output.endswith("which may take 5 s\n")
    assert server.gateway.controls.asked == [None, 5.0]  # type: ignore[union-attr]


def test_drain_may_wait_for_the_end() -> None:
    with serving_on_thread(FakeStack()) as server:
        controls = server.gateway.controls = Operated()

        def gone(seconds: float | None = None) -> float:
            server.app.state.server.should_exit = True
            return 0.0

        controls.drain = gone  # type: ignore[method-assign]
        told = CliRunner().invoke(app, ["drain", "--wait", "--server", server.url])
    assert told.exit_code == 0, told.output
    assert told.output.endswith("the server has ended\n")


def test_reload_tells_what_is_in_force(server: Running) -> None:
    told = run(server, "reload")
    assert told.output == "for new calls: server.max_calls\nonly after a restart: server.port\n"


def test_reload_says_why_not(server: Running) -> None:
    server.gateway.controls.problem = UsageError("x.toml:3: no", code="VA431")  # type: ignore[union-attr]
    told = run(server, "reload")
    assert told.exit_code == 2
    assert "error VA431: x.toml:3: no" in told.output


def test_a_wrong_key_says_what_is_needed(server: Running) -> None:
    told = run(server, "drain", key="k" * 20)
    assert told.exit_code == 2
    assert "--key, or VOICE_AGENT_KEY" in told.output


def test_no_server() -> None:
    told = CliRunner().invoke(app, ["top", "--once", "--server", "http://127.0.0.1:1"])
    assert told.exit_code == 1
    assert "VA508: no server answers at http://127.0.0.1:1" in told.output
