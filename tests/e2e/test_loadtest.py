"""A short load test as an operator runs it: two callers over WebSockets, the real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from voice_agent.cli.app import app

pytestmark = pytest.mark.e2e


def test_two_callers_are_answered_each_with_its_own_word(tmp_path: Path) -> None:
    out, page = tmp_path / "a.json", tmp_path / "a.html"
    command = ["loadtest", "run", "--calls", "2", "--seconds", "15", "--set", "models.fetch=false"]
    done = CliRunner().invoke(app, [*command, "--json", str(out), "--html", str(page)])
    assert done.exit_code == 0, done.output
    body = json.loads(out.read_text())
    assert {turn["call"] for turn in body["raw"]["turns"]} == {0, 1}
    for name in ("stuck", "refused", "cross_talk"):
        assert body[name] == 0, done.output
    assert not body["failed"]
    assert not body["lost"]
    assert body["answers_transcribed"] >= 2
    assert body["own_word_missing"] <= 1  # what the recogniser did not make out
    waits = body["voice_to_voice_ms"]
    assert waits["n"] + body["answered_early"] + body["barge_ins_missed"] == body["turns"]
    assert 0 < waits["p50"] <= waits["p95"] <= waits["p99"] <= waits["max"]
    assert body["glitches_per_min"] is not None
    assert body["cpu_s_per_call_min"] > 0
    assert body["split_ms"]["end_of_turn"]["n"] >= 2, "the server's own record of the turns"
    assert 0 < body["utilisation"]["recognition"] < 1
    assert "voice to voice" in done.output
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--scenario", "nonsense"], "VA530"),
        (["--set", "nonsense"], "VA531"),
        (["--clips", "/nonexistent"], "VA535"),
        (["--url", "http://127.0.0.1:9"], "VA532"),
        (["--url", "nonsense"], "VA532"),
        (["--set", "server.nonsense=1"], "VA431"),
    ],
)
def test_what_cannot_be_run_says_why(arguments: list[str], code: str) -> None:
    done = CliRunner().invoke(app, ["loadtest", "run", *arguments])
    assert done.exit_code != 0
    assert code in done.output
