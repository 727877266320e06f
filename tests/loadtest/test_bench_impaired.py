"""The impaired line's arithmetic, and one short run of it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import uvloop

from loadtest.bench.__main__ import CLIPS
from loadtest.bench.transport.impaired import AFTER, BAD, BEFORE, run_calls, script
from loadtest.bench.transport.namespaces import lacking
from loadtest.bench.transport.quality import MINUTE, SECOND, Track, back_s, judge, table
from loadtest.bench.transport.wan import Impairment
from voice_agent.types import OUT_FRAME, FrameFlag

pytestmark = pytest.mark.unit

R, F, C, S = FrameFlag.RECEIVED, FrameFlag.RECOVERED, FrameFlag.CONCEALED, FrameFlag.SILENCE


def track(flags: list[FrameFlag], depth: float = 60.0, after: list[float] | None = None) -> Track:
    after = [40.0] * 2 * SECOND if after is None else after
    return Track([*flags, *[R] * len(after)], [*[depth] * len(flags), *after], len(flags))


def test_a_good_line_meets_every_goal() -> None:
    quality = judge([track([R] * MINUTE)] * 2)
    assert (quality.minutes, quality.decoded, quality.back_s) == (2, 1.0, 0.0)
    assert not quality.missed()
    assert "100.00% + 0.00% = 100.00%" in table({"x": quality})


@pytest.mark.parametrize(
    ("bad", "depth", "after", "missed"),
    [
        ([R] * 96 + [C] * 4, 60.0, None, {"decoded", "concealed", "calm_minutes"}),
        ([R] * 97 + [C, R, C], 60.0, None, set()),
        ([R] * 98 + [F] * 2, 60.0, None, set()),
        ([R] * 298 + [C] * 3, 60.0, None, set()),
        ([R] * 298 + [C, S, S, C], 60.0, None, {"calm_minutes"}),
        ([R], 160.0, None, {"depth_p95_ms"}),
        ([R], 60.0, [100.0] * 11 * SECOND + [40.0] * SECOND, {"back_s"}),
        ([R], 60.0, [100.0] * 9 * SECOND + [40.0] * SECOND, set()),
        ([R], 60.0, [40.0, 100.0] * 6 * SECOND, {"back_s"}),
    ],
)
def test_each_goal_can_be_missed(
    bad: list[FrameFlag], depth: float, after: list[float] | None, missed: set[str]
) -> None:
    flags = (bad * MINUTE)[:MINUTE]
    assert set(judge([track(flags, depth, after)]).missed()) == missed


def test_less_than_a_minute_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="minute"):
        judge([track([R] * (MINUTE - 1))])


def test_a_second_below_counts_a_moment_does_not() -> None:
    assert back_s([100.0] * SECOND + [40.0] * SECOND) == 1.0
    assert back_s([100.0, *[40.0] * (SECOND - 1)]) is None


def test_packets_are_lost_and_delayed_as_asked() -> None:
    rng = random.Random(1)
    fates = [BAD.delay_s(rng) for _ in range(20_000)]
    delays = [d * 1000 for d in fates if d is not None]
    assert 1 - len(delays) / len(fates) == pytest.approx(0.05, abs=0.005)
    assert np.mean(delays) == pytest.approx(50.0, abs=0.5)
    assert 30.0 <= min(delays) < 31.0 < 69.0 < max(delays) <= 70.0
    assert Impairment().delay_s(rng) == 0.0


def test_the_script_has_every_clip_with_a_pause_before_it() -> None:
    said = script(CLIPS)
    assert len(said.speech) == len(said.packets) * OUT_FRAME
    assert said.clips[-1].end == len(said.packets)
    starts = [clip.first for clip in said.clips]
    ends = [0, *(clip.end for clip in said.clips[:-1])]
    assert all(start - end >= BEFORE + AFTER for start, end in zip(starts, ends, strict=True))


@pytest.mark.slow
def test_calls_over_a_bad_line() -> None:
    if lack := lacking():
        pytest.skip(f"NOT RUN: needs {lack}")
    run = uvloop.run(run_calls(script(CLIPS), 2, 60.0, BAD))
    assert 0.03 < run.lost / run.packets < 0.07
    assert {name: quality.missed() for name, quality in run.quality.items()} == {
        "heard by the server": [], "heard by the caller": [],
    }  # fmt: skip
    assert all(quality.fec > 0.02 for quality in run.quality.values())
