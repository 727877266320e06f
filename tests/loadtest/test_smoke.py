"""The gate can fail: a figure that is worse, missing or new; an engine that lost what it had."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.bench.smoke import __main__ as smoke
from loadtest.bench.smoke import conversation, virtual
from loadtest.bench.smoke.figures import BASELINE, Better, Figure, Verdict, judge, read, write

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("value", "better", "slack", "verdict"),
    [
        (100.0, Better.HIGHER, 0.0, Verdict.OK),
        (99.0, Better.HIGHER, 0.0, Verdict.WORSE),
        (101.0, Better.HIGHER, 0.0, Verdict.BETTER),
        (101.0, Better.LOWER, 0.0, Verdict.WORSE),
        (99.0, Better.LOWER, 0.0, Verdict.BETTER),
        (75.0, Better.HIGHER, 0.3, Verdict.OK),
        (69.0, Better.HIGHER, 0.3, Verdict.WORSE),
        (129.0, Better.LOWER, 0.3, Verdict.OK),
        (131.0, Better.LOWER, 0.3, Verdict.WORSE),
    ],
)
def test_worse_is_worse_by_more_than_the_slack(
    value: float, better: Better, slack: float, verdict: Verdict
) -> None:
    (judged,) = judge([Figure("a.b", value, better, slack)], {"a.b": 100.0})
    assert judged.verdict is verdict
    assert judged.fails == (verdict is Verdict.WORSE)


def test_a_count_that_must_be_zero_may_not_be_one() -> None:
    (judged,) = judge([Figure("a.holes", 1.0, Better.LOWER, 0.3)], {"a.holes": 0.0})
    assert judged.fails


def test_what_only_one_of_them_has_fails() -> None:
    found = judge([Figure("a.new", 1.0, Better.LOWER)], {"a.gone": 2.0})
    assert [(j.name, j.verdict) for j in found] == [
        ("a.new", Verdict.NEW), ("a.gone", Verdict.MISSING),
    ]  # fmt: skip
    assert all(j.fails for j in found)
    with pytest.raises(ValueError, match="two figures"):
        judge([Figure("a.b", 1.0, Better.LOWER)] * 2, {})


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """One figure in place of the virtual section's."""

    def use(value: float) -> None:
        figure = Figure("virtual.hits", value, Better.HIGHER, 0.1)
        monkeypatch.setattr(virtual, "figures", lambda: [figure])

    return use


def test_the_command_passes_fails_and_says_what_to_do(
    tmp_path: Path, stand_in: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "baseline.json"
    args = ["--only", "virtual", "--baseline", str(baseline)]
    stand_in(100.0)
    assert smoke.main(args) == 2
    assert "--accept writes one" in capsys.readouterr().err
    write(baseline, virtual.figures())
    assert smoke.main(args) == 0
    assert "nothing has become worse" in capsys.readouterr().out
    stand_in(80.0)
    assert smoke.main([*args, "--json", str(tmp_path / "out.json")]) == 1
    seen = capsys.readouterr()
    assert "WORSE" in seen.out
    assert "virtual.hits" in seen.err
    assert "ARGS=--accept" in seen.err
    assert json.loads((tmp_path / "out.json").read_text()) == {"virtual.hits": 80.0}
    stand_in(120.0)
    assert smoke.main(args) == 0
    assert "some figures are better" in capsys.readouterr().out


def test_a_part_of_the_figures_is_no_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        smoke.main(["--only", "virtual", "--accept"])
    assert "--accept needs every section" in capsys.readouterr().err


def committed(section: str) -> dict[str, float]:
    return {name: v for name, v in read(BASELINE).items() if name.startswith(section)}


def test_the_engine_in_virtual_time_is_as_the_baseline_says() -> None:
    judged = judge(virtual.figures(), committed("virtual."))
    assert [str(j) for j in judged if j.fails] == []


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ({"prefix_cache": "none"}, "virtual.second_turn_hit_tokens"),
        ({"scheduling_policy": "fcfs"}, "virtual.holes_deadline"),
        ({"batching": "static"}, "virtual.first_text_p99_over_static"),
    ],
)
def test_an_engine_that_lost_something_fails(
    monkeypatch: pytest.MonkeyPatch, lost: dict[str, str], named: str
) -> None:
    whole = virtual.engine
    monkeypatch.setattr(virtual, "engine", lambda *a, **k: whole(*a, **(k | lost)))
    part = {
        "virtual.second_turn_hit_tokens": virtual.prefixes,
        "virtual.holes_deadline": virtual.speech,
        "virtual.first_text_p99_over_static": virtual.batching,
    }[named]
    bad = {j.name for j in judge(part(), committed("virtual.")) if j.verdict is Verdict.WORSE}
    assert named in bad


def test_recorded_calls_that_decide_otherwise_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = committed("conversation.")
    assert not any(j.fails for j in judge(conversation.figures(), recorded))
    true = conversation.replay

    def forgets(call: object) -> object:
        replayed = true(call)  # type: ignore[arg-type]
        del replayed.decisions[3]
        return replayed

    monkeypatch.setattr(conversation, "replay", forgets)
    bad = {j.name for j in judge(conversation.figures(), recorded) if j.fails}
    assert "conversation.recorded_decisions_changed" in bad
