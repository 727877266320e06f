"""`say` and `transcribe` with the small models: what is said is what is heard."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from typer.testing import CliRunner

from voice_agent.audio import read_wav
from voice_agent.cli.app import app

pytestmark = pytest.mark.model

SENTENCE = "Please call me back tomorrow morning, because the train is going to be late."
MAX_WRONG = 2
"""Words: the voice draws random noise, so no two readings are the same."""


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def test_what_is_said_is_what_is_heard(tmp_path: Path) -> None:
    wav = tmp_path / "said.wav"
    said = CliRunner().invoke(app, ["say", SENTENCE, "--out", str(wav), "--no-fetch"])
    assert said.exit_code == 0, said.output
    sound = read_wav(wav)
    assert sound.source_rate == 24_000
    assert 2.0 < sound.seconds < 8.0
    heard = CliRunner().invoke(
        app, ["transcribe", str(wav), "--no-fetch", "--stt", "whisper-tiny.en"]
    )
    assert heard.exit_code == 0, heard.output
    said_words, heard_words = words(SENTENCE), words(heard.stdout)
    same = SequenceMatcher(None, said_words, heard_words).get_matching_blocks()
    assert len(said_words) - sum(b.size for b in same) <= MAX_WRONG, heard.stdout


def test_faster_is_shorter(tmp_path: Path) -> None:
    seconds = []
    for speed in ("1.0", "1.6"):
        wav = tmp_path / f"{speed}.wav"
        result = CliRunner().invoke(
            app, ["say", SENTENCE, "-o", str(wav), "--speed", speed, "--no-fetch"]
        )
        assert result.exit_code == 0, result.output
        seconds.append(read_wav(wav).seconds)
    assert seconds[1] < 0.8 * seconds[0]


@pytest.mark.parametrize("text", ["", "...", "🎉🎉"])
def test_nothing_to_say(tmp_path: Path, text: str) -> None:
    wav = tmp_path / "x.wav"
    result = CliRunner().invoke(app, ["say", text, "--out", str(wav), "--no-fetch"])
    assert result.exit_code == 2
    assert "VA474" in result.stderr
    assert not wav.exists()
