"""`voice-agent keys`, and the flags that choose a certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from voice_agent.cli.app import app
from voice_agent.config import load_config
from voice_agent.errors import UsageError
from voice_agent.keys import KeyFile, digest

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def test_a_key_from_its_making_to_its_end(tmp_path: Path) -> None:
    made = run("keys", "add", "reception", "--scope", "call", "--scope", "api", "--days", "30")
    key = made.stdout.strip().splitlines()[-1]
    assert made.exit_code == 0
    file = KeyFile(tmp_path / "data" / "voice-agent" / "keys.json")
    (record,) = file.records()
    assert record.sha256 == digest(key)
    listed = run("keys", "list").output
    assert record.id in listed
    assert "api call" in listed
    assert key not in listed
    assert "never" not in listed
    assert run("keys", "revoke", "reception").exit_code == 0
    assert "revoked" in run("keys", "list").output
    again = run("keys", "revoke", "reception")
    assert isinstance(again.exception, UsageError) or again.exit_code == 2


def test_the_file_can_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICE_AGENT__SERVER__KEYS_FILE", str(tmp_path / "mine.json"))
    run("keys", "add", "x", "--agent", "front")
    (record,) = KeyFile(tmp_path / "mine.json").records()
    assert (record.scopes, record.agent, record.expires) == (("call",), "front", None)


@pytest.mark.parametrize(
    "text",
    [
        '[server]\ntls_certificate = "a.pem"\n',
        '[server]\ntls_key = "a.key"\n',
        '[server]\ntls_self_signed = true\ntls_certificate = "a.pem"\ntls_key = "a.key"\n',
        '[server]\npage = "open"\n',
    ],
)
def test_what_does_not_go_together(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config(path)
    assert caught.value.code == "VA432"


def test_up_looks_at_the_certificate_before_loading() -> None:
    result = run("up", "--tls-certificate", "none.pem", "--tls-key", "none.key", "--port", "0")
    assert "none.pem" in (str(result.exception) + result.output)
    assert result.exit_code != 0
