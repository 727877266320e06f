"""Sections run one at a time add up in one file, which can be printed without measuring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.bench.llm.__main__ import kept, main

pytestmark = pytest.mark.unit

CANCEL = {
    "threads": "2 threads (alone)",
    "shape": "one of eight",
    "aborts": 3,
    "free_ms": {"n": 3, "p50": 1.0, "p95": 2.0, "p99": 2.0, "max": 2.0, "few": ["p95", "p99"]},
    "most_steps": 1,
    "hardware": "4 cores of some kind",
    "took_s": 2.0,
}


def test_a_file_is_added_to_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"model": "smollm2-135m", "cancel": CANCEL}))
    assert kept(path, "smollm2-135m")["cancel"] == CANCEL
    assert kept(tmp_path / "none.json", "m") == {"model": "m"}
    assert main(["--json", str(path), "--show"]) == 0
    printed = capsys.readouterr().out
    assert "== cancel (4 cores of some kind" in printed
    assert "at most 1 steps; p50 1.0 p95 ~2.0 p99 ~2.0" in printed


def test_figures_of_another_model_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"model": "smollm2-135m"}))
    with pytest.raises(SystemExit, match="figures of smollm2-135m, not of qwen"):
        kept(path, "qwen2.5-0.5b")
