"""The engine's benchmark, from end to end and as quickly as it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.bench.llm.__main__ import SECTIONS, main

pytestmark = pytest.mark.slow


def test_every_section_measures_prints_and_keeps_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "engine.json"
    assert main(["--quick", "--no-peers", "--json", str(out)]) == 0
    body = json.loads(out.read_text())
    assert set(SECTIONS) <= set(body)
    printed = capsys.readouterr().out
    assert all(f"== {name}" in printed for name in SECTIONS)

    assert body["quality"]["rows"][0]["perplexity"] > 1.0
    for row in body["bound"]["rows"]:
        assert row["linears_ms"] > 0.0
        assert row["step_ms"] > 0.0
        assert "thread" in row["threads"]
    assert {row["concurrency"] for row in body["fixed"]["rows"]} == {1, 4}
    for name in ("fixed", "spoken"):
        for row in body[name]["rows"]:
            assert row["failed"] == []
            assert row["tokens_per_s"] > 0.0
    for row in body["first"]["rows"]:
        assert row["cold_ms"]["n"] == row["cached_ms"]["n"] == 2
    assert body["static"]["held_in_the_same_memory"]["ratio"] > 1.0
    assert set(body["static"]["measured"]) == {"static", "fcfs", "deadline"}
    virtual = body["radix"]["virtual"]
    assert virtual["radix"]["cached_tokens"] > 0
    assert virtual["none"]["cached_tokens"] == 0
    assert body["long"]["amid_ms"]["n"] > 0
    playback, aloud = body["playback"], body["aloud"]
    assert aloud["measured"]["deadline"]["turns"] > 0
    assert aloud["decode_tokens_per_s"] > 0.0
    assert all("load" in tried for tried in playback["swept"])
    assert playback["seeds"][0]["policies"]["fcfs"]["turns"] > 0
    assert [row["requests"] for row in body["plan"]["rows"]] == [16, 256, 4096]
    assert body["cancel"]["free_ms"]["n"] == body["cancel"]["aborts"]
    assert body["v1"]["hang_up_to_abort_ms"]["n"] > 0
    assert body["call"]["turns"] > 0
    assert body["call"]["prefix"]["first"]["prompt_tokens"]["n"] == 1
    assert body["call"]["engine"]["tokens_total"] > 0.0
    assert all(body[name]["hardware"] and "threads" in str(body[name]) for name in SECTIONS)
