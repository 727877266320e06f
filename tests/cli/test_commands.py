"""The command line through its own front door, with nothing heavy loaded."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from voice_agent.audio import write_wav
from voice_agent.cli.app import app
from voice_agent.cli.console import engine_error, progress
from voice_agent.errors import CapacityError, UsageError

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("VOICE_AGENT_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("COLUMNS", "200")


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in ("up", "doctor", "models", "say", "transcribe", "chat", "talk", "config", "init"):
        assert name in result.output


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from voice_agent.cli.app import app\n"
        "heavy = {'torch', 'numpy', 'onnxruntime', 'transformers', 'ctranslate2', 'gateway',"
        " 'engine', 'uvicorn', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert out.stdout.strip() == "[]"


def test_only_the_wiring_module_imports_the_gateway() -> None:
    importers = [
        str(path.relative_to(ROOT))
        for package in ("voice_agent", "engine", "kernels")
        for path in (ROOT / package).rglob("*.py")
        if any(
            line.lstrip().startswith(("from gateway", "import gateway"))
            for line in path.read_text("utf-8").splitlines()
        )
    ]
    assert importers == ["voice_agent/cli/serve.py"]


def test_init_writes_a_checked_file_once() -> None:
    result = run("init", "sales")
    assert result.exit_code == 0, result.output
    text = Path("agents/sales.toml").read_text()
    assert text.count("#") > 10
    again = run("init", "sales")
    assert again.exit_code == 2
    assert "VA444" in again.stderr
    assert run("init", "sales", "--force").exit_code == 0
    assert run("init", "../evil").exit_code == 2


def test_config_show_names_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("voice-agent.toml").write_text("[server]\nport = 9000\n")
    monkeypatch.setenv("VOICE_AGENT__LOG__FORMAT", "json")
    result = run("config", "show")
    assert result.exit_code == 0
    assert "voice-agent.toml:2" in result.output
    assert "VOICE_AGENT__LOG__FORMAT" in result.output


def test_a_wrong_key_is_one_line_and_status_2() -> None:
    Path("voice-agent.toml").write_text("[server]\nprot = 9000\n")
    result = run("config", "show")
    assert result.exit_code == 2
    assert result.stderr == (
        "error VA431: voice-agent.toml:2: unknown key 'server.prot'; did you mean 'server.port'?\n"
    )


def test_models_list_shows_what_is_missing() -> None:
    result = run("models", "list")
    assert result.exit_code == 0
    for name in ("whisper-tiny.en", "qwen2.5-0.5b", "kokoro-voices"):
        assert name in result.output
    assert "unknown author" in result.output


def test_models_verify() -> None:
    assert run("models", "verify").exit_code == 0
    missing = run("models", "verify", "piper-joe")
    assert missing.exit_code == 1
    assert "piper-joe: missing" in missing.output
    assert run("models", "verify", "piper-jo").exit_code == 2


def test_models_fetch_checks_names_first() -> None:
    assert "VA410" in run("models", "fetch", "nothing").stderr
    assert "VA410" in run("models", "fetch", "--group", "everything").stderr


def test_commands_without_models_name_the_fetch() -> None:
    wav = Path("x.wav")
    write_wav(wav, np.zeros(16_000, np.int16), 16_000)
    for args in (
        ("say", "hello", "--out", "y.wav", "--no-fetch"),
        ("transcribe", str(wav), "--no-fetch"),
        ("chat", "--no-fetch"),
    ):
        result = run(*args)
        assert result.exit_code == 2, result.output
        assert "VA411" in result.stderr
        assert "voice-agent models fetch" in result.stderr
    assert not Path("y.wav").exists()


def test_talk_looks_at_its_files_before_loading() -> None:
    Path("bad.wav").write_bytes(b"RIFFnot really")
    assert "VA120" in run("talk", "--wav", "bad.wav", "--out", "o.wav").stderr
    write_wav(Path("good.wav"), np.full(16_000, 99, np.int16), 16_000)
    assert "VA475" in run("talk", "--wav", "good.wav", "--out", "no/o.wav").stderr


def test_up_sees_a_busy_port_before_loading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        result = run("up", "--port", str(port), "--no-fetch")
    assert result.exit_code == 2
    assert "VA470" in result.stderr
    assert f"--port {port + 1}" in result.stderr


def test_up_needs_a_key_beyond_this_machine() -> None:
    result = run("up", "--host", "0.0.0.0", "--port", "0", "--no-fetch")
    assert result.exit_code == 2
    assert "VA450" in result.stderr


def test_up_refuses_an_agent_it_cannot_speak_for() -> None:
    Path("agents").mkdir()
    Path("agents/hans.toml").write_text('instructions = "x"\nlanguage = "de"\n')
    result = run("up", "--agent", "hans", "--port", "0", "--no-fetch")
    assert result.exit_code == 2
    assert "VA442" in result.stderr
    assert "agents/hans.toml:2" in result.stderr


def test_doctor_fails_when_models_are_missing_and_must_not_be_fetched() -> None:
    Path("voice-agent.toml").write_text("[models]\nfetch = false\n[server]\nport = 0\n")
    result = run("doctor", "--quick")
    assert result.exit_code == 1
    assert "voice-agent models fetch" in result.output


def test_doctor_passes_on_a_new_machine() -> None:
    Path("voice-agent.toml").write_text("[server]\nport = 0\n")
    assert run("doctor", "--quick").exit_code == 0


def test_engine_errors_get_codes() -> None:
    from engine import errors

    assert isinstance(engine_error(errors.CapacityError("full")), CapacityError)
    assert isinstance(engine_error(errors.ModelError("bad")), UsageError)
    assert engine_error(errors.InternalError("oops")).code == "VA311"


def test_progress_without_a_terminal_prints_each_stage_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress() as stage:
        stage("one", None)
        stage("one", 0.5)
        stage("two", None)
    assert capsys.readouterr().err == "one ...\ntwo ...\n"


def test_a_certificate_of_our_own(tmp_path: Path) -> None:
    import ssl

    from voice_agent.cli.tls import self_signed

    certificate, key = self_signed(tmp_path / "tls", "192.0.2.7")
    assert (key.stat().st_mode & 0o777) == 0o600
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    before = certificate.read_bytes()
    assert self_signed(tmp_path / "tls", "192.0.2.7")[0].read_bytes() == before
    assert b"BEGIN CERTIFICATE" in before


def test_listening_everywhere_answers_to_the_machines_own_name() -> None:
    from voice_agent.cli.serve import gateway_config
    from voice_agent.config import Config

    everywhere = Config.model_validate(
        {"server": {"host": "0.0.0.0", "allowed_hosts": ["x.example"]}}
    )
    hosts = gateway_config(everywhere, 8080).allowed_hosts
    assert {"x.example", socket.gethostname(), "127.0.0.1"} <= set(hosts)
    assert gateway_config(Config(), 8080).allowed_hosts == ()
    assert gateway_config(Config(), 8080).max_http_replies == 64
