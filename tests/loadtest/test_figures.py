"""A run's figures are made of its raw samples, and the worst turns stay in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtest.callers.caller import CallLog, Turn
from loadtest.crosstalk import CrossTalk
from loadtest.figures import Raw, report
from loadtest.numbers import difference, percentile, spread
from loadtest.options import Options
from loadtest.plan import PlannedCall
from loadtest.plots import write_html, write_png
from loadtest.scenario import Group
from loadtest.table import table
from loadtest.watch import Sample, Watch, parse_metrics

pytestmark = pytest.mark.unit


async def nothing() -> dict[str, float]:
    return {}


def a_run(transport: str = "ws", **log: object) -> dict[str, object]:
    talkers = Group(name="talkers", share=1.0)
    street = Group(name="street", count=1, speech="noise", measured=False)
    one = CallLog(up_s=10.0, down_s=70.0, frames=3000, **log)  # type: ignore[arg-type]
    one.turns = [Turn("a", 12.0 + i, v2v_s=0.4 + 0.01 * i, waited_s=0.4) for i in range(20)]
    one.turns.append(Turn("a", 40.0, stuck=True, waited_s=15.0))
    one.turns.append(Turn("a", 41.0, early=True))
    one.turns.append(Turn("a", 42.0, v2v_s=0.5, cut_in=True, stop_s=0.35))
    one.ear.gaps += [(20.0, 0.09), (30.0, 0.25)]
    two = CallLog(up_s=10.0, down_s=40.0, frames=1500)
    two.turns.append(Turn("a", 30.0, v2v_s=9.0))  # not measured
    three = CallLog(refused="HTTP 503")
    calls = [
        (PlannedCall(0, talkers, 0, 60, 1, "banana", ""), one),
        (PlannedCall(1, street, 0, 30, 2, "piano", ""), two),
        (PlannedCall(2, talkers, 0, 60, 3, "tomato", ""), three),
    ]
    watch = Watch(nothing, None)
    for i in range(61):
        numbers = {
            "stt_busy_seconds": 5.0 + 0.3 * i, "stt_workers": 1.0, "engine_kv_blocks_total": 100.0,
            "engine_kv_blocks_free": 60.0 - i % 40, "engine_steps_total": 10.0 * i,
            "engine_step_ms_p50": 20.0, "engine_finished_total": float(i),
            "engine_kv_blocks_held": float(i % 40), "early_refused_llm_load_total": float(i // 20),
        }  # fmt: skip
        watch.samples.append(Sample(10.0 + i, 0.5 * i, 800.0 + i, numbers))
    records = [
        {
            "voice_to_voice_ms": 300.0 + i,
            "stages": {"end_of_turn": 200.0 + i},
            "outcome": "spoken",
            "holes": i % 2,
        }
        for i in range(20)
    ] + [{"voice_to_voice_ms": None, "stages": {"end_of_turn": 9.0}, "outcome": "no_input: noise"}]
    cross = CrossTalk(answers=21, missing=1, foreign=[(0, ["piano"])])
    raw = Raw(calls, watch, 10.0, 60.0, records, cross)
    options = Options(calls=2, seconds=60.0, transport=transport)  # type: ignore[arg-type]
    return report(options, "2 cores", raw)


def test_the_json_has_what_was_asked_for() -> None:
    body = a_run()
    v2v = body["voice_to_voice_ms"]
    assert v2v["n"] == 22  # 20, the one after cutting in, and the stuck one with all its wait
    assert v2v["max"] == 15_000.0
    assert v2v["p99"] == 15_000.0
    assert v2v["p50"] == pytest.approx(500.0)
    assert (body["stuck"], body["refused"], body["answered_early"]) == (1, 1, 1)
    assert body["cross_talk"] == 1
    assert body["own_word_missing"] == 1
    assert body["barge_in_stop_ms_p99"] == pytest.approx(350.0)
    assert body["glitches_per_min"] == pytest.approx(2.0)  # in the one measured minute
    assert body["worst_gap_ms"] == 250.0
    assert body["cpu_s_per_call_min"] == pytest.approx(30.0 / 1.5)
    assert body["utilisation"]["recognition"] == pytest.approx(0.3)
    assert body["utilisation"]["engine"] == pytest.approx(0.2)
    assert body["kv"]["full_peak_share"] == pytest.approx(0.79)
    assert body["shed"] == {"early_refused_llm_load_total": 3.0}
    assert body["memory_mb_growth"] == pytest.approx(60.0)
    assert body["split_ms"]["end_of_turn"]["n"] == 20
    assert body["outcomes"] == {"spoken": 20, "no_input": 1}
    assert set(body["groups"]) == {"talkers", "street"}
    assert body["groups"]["street"]["turns"] == 1


def test_holes_that_arrive_as_silence_are_counted_by_the_server() -> None:
    assert a_run()["glitches"] == 2
    body = a_run("webrtc")
    assert body["server_holes"] == 10
    assert body["glitches"] == 12
    assert body["glitches_per_min"] == pytest.approx(12 / body["call_minutes"])


def test_nothing_to_compare_with_is_no_zero() -> None:
    talkers = Group(name="talkers", share=1.0)
    raw = Raw(
        [(PlannedCall(0, talkers, 0, 60, 1, None, ""), CallLog(up_s=0.0, down_s=30.0))],
        Watch(nothing, None), 0.0, 30.0, None, None,
    )  # fmt: skip
    body = report(Options(url="http://x"), "2 cores", raw)
    for name in ("cross_talk", "cpu_s_per_call_min", "memory_mb_peak", "kv", "split_ms"):
        assert body[name] is None
    assert body["voice_to_voice_ms"]["p50"] is None
    assert table(body)


def test_percentiles_are_ranks_of_the_raw_values() -> None:
    values = list(range(1, 101))
    assert [percentile(values, q) for q in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([], 0.5) is None
    assert percentile([7.0], 0.99) == 7.0
    assert spread(values)["rough"] == ["p95", "p99"]
    assert spread(values * 10)["rough"] == []


def test_a_difference_s_interval_holds_chance_and_not_a_real_change() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(500, 50, 200).tolist(), rng.normal(500, 50, 200).tolist()

    def median(values: list[float]) -> float | None:
        return percentile(values, 0.5)

    low, high = difference(a, b, median, np.random.default_rng(1)) or (1.0, 1.0)
    assert low < 0 < high
    low, high = difference(a, [x + 60 for x in b], median, np.random.default_rng(1)) or (0.0, 0.0)
    assert 30 < low < 60 < high + 20
    assert difference([1.0], b, median, rng) is None


def test_the_table_marks_what_is_rough_and_what_never_came() -> None:
    text = "\n".join(table(a_run()))
    assert "voice to voice" in text
    assert ">~15000" in text
    assert "stuck 1, cross-talk 1, refused 1" in text
    assert "end of turn" in text
    assert "street" in text


def test_pictures_stand_alone(tmp_path: Path) -> None:
    body = a_run()
    write_png(body, tmp_path / "a.png")
    write_html(body, tmp_path / "b" / "a.html")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = (tmp_path / "b" / "a.html").read_text()
    assert "<svg" in page
    assert "voice to voice" in page
    assert "<script" not in page
    assert "src=" not in page
    assert 'href="http' not in page


def test_metrics_are_read_with_labels_summed_and_buckets_left_out() -> None:
    text = (
        "# HELP voice_agent_turns x\n"
        'voice_agent_turns_total{outcome="spoken"} 3.0\n'
        'voice_agent_turns_total{outcome="no_input"} 2.0\n'
        'voice_agent_stage_seconds_bucket{le="0.1",stage="playout"} 4.0\n'
        "voice_agent_stt_busy_seconds 1.5\nother_thing 9\n"
    )
    assert parse_metrics(text) == {"turns_total": 5.0, "stt_busy_seconds": 1.5}
