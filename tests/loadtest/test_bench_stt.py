"""The recognition benchmark runs and adds up."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from loadtest.bench import stt

pytestmark = pytest.mark.model

CLIPS = Path(__file__).parents[1] / "data" / "clips"


def test_two_clips_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(CLIPS / "transcripts.tsv", tmp_path)
    for name in ("ps_austen_0930.wav", "ps_something.wav"):
        shutil.copy(CLIPS / name, tmp_path)
    out = tmp_path / "stt.json"
    monkeypatch.setattr(sys, "argv", ["stt", "--clips", str(tmp_path), "--json", str(out)])
    stt.main()
    assert "amiable" in capsys.readouterr().out
    record = json.loads(out.read_text())
    totals = record["totals"]
    assert totals["turns"] == 2
    assert totals["wer_all"] == 0.0
    assert totals["wer_prompts"] is None
    assert totals["timed_passes_per_final"] <= 2.5
    assert totals["ready_ms_p50"] >= totals["endpoint_ms_p50"]
    assert len(record["clips"]) == 2
