"""What a line that loses and delays packets did to what was heard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from loadtest.report import quantile
from voice_agent.types import FRAME_MS, FrameFlag

MINUTE = 60_000 // FRAME_MS
SECOND = 1000 // FRAME_MS
LONGEST_RUN = 60 // FRAME_MS
CALM_DEPTH_MS = 80.0
GOALS = {
    "decoded": 0.97, "concealed": 0.03, "calm_minutes": 0.95, "depth_p95_ms": 140.0, "back_s": 10.0,
    "wer_points": 3.0,
}  # fmt: skip
MISSING = (FrameFlag.CONCEALED, FrameFlag.SILENCE)


@dataclass(frozen=True, slots=True)
class Track:
    """One listener's call, a value per 20 ms: where the sound came from, and the depth of the
    jitter buffer in ms as the tick began. `calm`: the first tick after the impairment."""

    flags: Sequence[FrameFlag]
    depths_ms: Sequence[float]
    calm: int


@dataclass(frozen=True, slots=True)
class Quality:
    """Of all calls together. Shares are of frames while impaired; `silent` frames are those for
    which nothing was there to conceal. calm_minutes: share of minutes without a run of missing
    frames of over 60 ms. back_s: the slowest call's time until the depth stayed below 80 ms for a
    second; None: one never did."""

    minutes: int
    own_packet: float
    fec: float
    concealed: float
    silent: float
    calm_minutes: float
    longest_run_ms: int
    depth_p50_ms: float
    depth_p95_ms: float
    back_s: float | None

    @property
    def decoded(self) -> float:
        return self.own_packet + self.fec

    def missed(self) -> list[str]:
        """Goals that are not met."""
        out = [] if self.decoded >= GOALS["decoded"] else ["decoded"]
        out += [] if self.concealed + self.silent <= GOALS["concealed"] else ["concealed"]
        out += [] if self.calm_minutes >= GOALS["calm_minutes"] else ["calm_minutes"]
        out += [] if self.depth_p95_ms <= GOALS["depth_p95_ms"] else ["depth_p95_ms"]
        late = self.back_s is None or self.back_s > GOALS["back_s"]
        return [*out, "back_s"] if late else out


def judge(tracks: Sequence[Track]) -> Quality:
    """Raises ValueError without a whole minute of impairment."""
    impaired = [track.flags[: track.calm] for track in tracks]
    flags = [flag for one in impaired for flag in one]
    minutes = [one[i : i + MINUTE] for one in impaired for i in range(0, len(one), MINUTE)]
    runs = [longest_run(minute) for minute in minutes if len(minute) == MINUTE]
    if not runs:
        raise ValueError("no whole minute was impaired")
    depths = [depth for track in tracks for depth in track.depths_ms[: track.calm]]
    backs = [back_s(track.depths_ms[track.calm :]) for track in tracks]

    def share(flag: FrameFlag) -> float:
        return flags.count(flag) / len(flags)

    return Quality(
        len(runs),
        share(FrameFlag.RECEIVED),
        share(FrameFlag.RECOVERED),
        share(FrameFlag.CONCEALED),
        share(FrameFlag.SILENCE),
        sum(run <= LONGEST_RUN for run in runs) / len(runs),
        max(runs) * FRAME_MS,
        quantile(depths, 0.5),
        quantile(depths, 0.95),
        max((back for back in backs if back is not None), default=None)
        if None not in backs
        else None,
    )


def longest_run(flags: Sequence[FrameFlag]) -> int:
    """Of frames that are not the sender's, in ticks."""
    lengths = [len(list(run)) for missing, run in groupby(f in MISSING for f in flags) if missing]
    return max(lengths, default=0)


def back_s(depths_ms: Sequence[float]) -> float | None:
    """Seconds until the depth stays below 80 ms for a second; None: it did not."""
    low = np.asarray(depths_ms) < CALM_DEPTH_MS
    for i in range(len(low) - SECOND + 1):
        if low[i : i + SECOND].all():
            return i / SECOND
    return None


def table(rows: dict[str, Quality]) -> str:
    """Markdown."""
    head = ["", *rows]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]

    def line(words: str, values: list[str]) -> None:
        lines.append("| " + " | ".join([words, *values]) + " |")

    line("minutes of calls", [str(q.minutes) for q in rows.values()])
    line(
        "from their own packet + its copy (FEC), >= 97 %",
        [f"{q.own_packet:.2%} + {q.fec:.2%} = {q.decoded:.2%}" for q in rows.values()],
    )
    line(
        "concealed, and silent for want of sound, <= 3 %",
        [f"{q.concealed:.2%}, {q.silent:.2%}" for q in rows.values()],
    )
    line(
        "minutes without a gap of over 60 ms, >= 95 %",
        [f"{q.calm_minutes:.1%} (longest {q.longest_run_ms} ms)" for q in rows.values()],
    )
    line(
        "jitter buffer p50 / p95, <= 140 ms",
        [f"{q.depth_p50_ms:.0f} / {q.depth_p95_ms:.0f}" for q in rows.values()],
    )
    line(
        "back below 80 ms after, <= 10 s",
        ["never" if q.back_s is None else f"{q.back_s:.1f}" for q in rows.values()],
    )
    return "\n".join(lines)
