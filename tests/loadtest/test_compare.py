"""What moved beyond noise, and the largest number of calls."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from loadtest.compare import blocks, compare, load_report, table
from loadtest.sweep import Objective, search
from voice_agent.cli.app import app
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit


def a_report(
    seed: int = 1, *, slower: float = 1.0, gaps: int = 0, cpu: float = 0.2
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    turns = [
        {"v2v_ms": 500 * slower * float(rng.lognormal(0, 0.2)), "stop_ms": None, "measured": True}
        for _ in range(120)
    ]
    calls = [{"minutes": 1.0, "gaps_ms": [90.0] * gaps, "measured": True} for _ in range(8)]
    windows = [
        {"cpu_s": cpu + float(rng.uniform(-0.05, 0.05)), "minutes": 1 / 60} for _ in range(60)
    ]
    return {
        "schema": 1, "scenario": "chatty", "transport": "ws", "calls": 2, "stuck": 0,
        "cross_talk": 0, "refused": 0, "barge_ins_missed": 0, "own_word_missing": 0,
        "false_replies": 0, "hardware": "2 cores",
        "raw": {"turns": turns, "calls": calls, "windows": windows, "stages": {}},
    }  # fmt: skip


def moved(a: dict[str, Any], b: dict[str, Any]) -> dict[str, int]:
    return {c.name: c.moved for c in compare(a, b).changes if c.moved}


def test_two_draws_of_the_same_did_not_move() -> None:
    assert moved(a_report(1), a_report(2)) == {}


def test_slower_turns_holes_and_cpu_are_worse_and_the_other_way_better() -> None:
    a, b = a_report(1), a_report(2, slower=1.3, gaps=2, cpu=0.4)
    worse = moved(a, b)
    assert worse["voice_to_voice_ms p50"] == 1
    assert worse["glitches_per_min"] == 1
    assert worse["cpu_s_per_call_min"] == 1
    assert set(moved(b, a).values()) == {-1}


def test_a_count_that_must_be_zero_is_worse_at_once() -> None:
    b = a_report(1) | {"stuck": 1}
    assert moved(a_report(1), b) == {"stuck": 1}
    assert moved(a_report(1), a_report(1) | {"cross_talk": None}) == {}


def test_a_percentile_of_too_few_turns_is_shown_and_not_judged() -> None:
    a, b = a_report(1), a_report(2, slower=3.0)
    for body in (a, b):
        body["raw"]["turns"] = body["raw"]["turns"][:15]
    assert "voice_to_voice_ms p95" not in moved(a, b)
    assert "voice_to_voice_ms p50" in moved(a, b)


def test_a_small_change_that_is_no_chance_is_not_told() -> None:
    a, b = a_report(1), copy.deepcopy(a_report(1))
    for turn in b["raw"]["turns"]:
        turn["v2v_ms"] *= 1.02
    assert moved(a, b) == {}


def test_seconds_are_put_together_by_fives() -> None:
    made = blocks(a_report(1)["raw"]["windows"])
    assert len(made) == 12
    assert sum(b["minutes"] for b in made) == pytest.approx(1.0)


def test_the_table_says_what_is_not_alike() -> None:
    a = a_report(1) | {"hardware": "2 cores, load 0.1"}
    b = a_report(2, slower=2.0) | {"transport": "webrtc", "hardware": "2 cores, load 0.9"}
    lines = table(compare(a, b))
    assert [x for x in lines if "not alike" in x] == ["not alike: transport: ws / webrtc"]
    assert any("WORSE" in line for line in lines)
    assert table(compare(a_report(1), a_report(2)))[-1] == "nothing moved beyond noise"


def test_the_command_s_status_is_1_only_when_it_is_strict_and_worse(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(a_report(1)))
    b.write_text(json.dumps(a_report(2, slower=2.0)))
    run = CliRunner().invoke
    out = tmp_path / "out.json"
    assert run(app, ["loadtest", "compare", str(a), str(b), "--json", str(out)]).exit_code == 0
    assert json.loads(out.read_text())["changes"]
    assert run(app, ["loadtest", "compare", str(a), str(b), "--strict"]).exit_code == 1
    assert run(app, ["loadtest", "compare", str(b), str(a), "--strict"]).exit_code == 0


@pytest.mark.parametrize("text", ["", "[]", '{"raw": {}}', '{"schema": 99, "raw": {}}'])
def test_a_file_that_is_no_run_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"a\.json") as error:
        load_report(path)
    assert error.value.code == "VA536"


# ---------------------------------------------------------------- sweep


@pytest.mark.parametrize("most", [1, 2, 3, 7, 16, 33])
async def test_the_largest_number_that_meets_it_is_found_in_few_runs(most: int) -> None:
    for limit in range(most + 2):
        tried: list[int] = []

        async def meets(n: int, limit: int = limit, tried: list[int] = tried) -> bool:
            tried.append(n)
            return n <= limit

        assert await search(meets, most) == min(limit, most)
        assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 1
        assert max(tried) <= most


def test_an_objective_names_what_was_missed() -> None:
    body = {
        "voice_to_voice_ms": {"p95": 900.0}, "glitches_per_min": 0.1, "stuck": 0, "refused": 0,
        "cross_talk": 0, "failed": [], "lost": [],
    }  # fmt: skip
    goal = Objective(1000.0, 0.5)
    assert goal.missed(body) == []
    assert goal.missed(body | {"cross_talk": None}) == []
    for bad, word in (
        ({"voice_to_voice_ms": {"p95": 1100.0}}, "p95"),
        ({"voice_to_voice_ms": {"p95": None}}, "no turn"),
        ({"glitches_per_min": 0.6}, "glitches"),
        ({"stuck": 1}, "stuck"),
        ({"cross_talk": 2}, "cross-talk"),
        ({"lost": ["x"]}, "broke"),
    ):
        assert word in goal.missed(body | bad)[0]
