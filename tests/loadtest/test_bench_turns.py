"""The end-of-turn benchmark runs and adds up."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from loadtest.bench import turns
from loadtest.bench.turns import Pause, totals

pytestmark = pytest.mark.model

CLIPS = Path(__file__).parents[1] / "data" / "clips"


def test_a_pause_is_cut_by_a_wait_that_is_not_longer() -> None:
    inner = Pause("a.wav", 0, 400.0, 0.5, "so", 384.0)
    assert inner.cut_by(inner.wait_ms)
    assert not inner.cut_by(turns.PLAIN_MS)
    end = Pause("a.wav", 0, None, 0.9, "so it is.", 288.0)
    assert not end.cut_by(1.0)
    report = totals([inner, end])
    assert (report["ends"], report["wait_ms_p50"]) == (1, 288)
    assert (report["pauses"], report["cut"], report["cut_by_plain_700_ms"]) == (1, 1, 0)


def test_two_clips_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ps_austen_0930.wav", "ms_beckett.wav"):
        shutil.copy(CLIPS / name, tmp_path)
    out = tmp_path / "turns.json"
    argv = ["turns", "--clips", str(tmp_path), "--answer-ms", "500", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", argv)
    turns.main()
    pauses = json.loads(out.read_text())["pauses"]
    ends = [p for p in pauses if p["length_ms"] is None]
    assert [p["clip"] for p in ends] == ["ms_beckett.wav", "ps_austen_0930.wav"]
    assert ends[0]["text"].endswith("Fail better.")
    inner = [p for p in pauses if p["length_ms"] is not None]
    assert len(inner) == 5
    assert all(500 < p["length_ms"] < 1300 for p in inner)
    assert all(500 <= p["wait_ms"] <= 1100 + 32 for p in pauses)
