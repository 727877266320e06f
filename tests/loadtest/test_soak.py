"""What a soak run is judged by: a made leak fails it, a start and a step do not."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from loadtest import held
from loadtest.callers.caller import CallLog
from loadtest.held import Held
from loadtest.scenario import load_scenario
from loadtest.soak import COUNTS, bad, growth
from loadtest.watch import Sample

pytestmark = pytest.mark.unit

NAMES = ("memory_mb", *COUNTS)
GOOD: dict[str, Any] = {
    "growth": {name: {"grows": False} for name in NAMES}, "stuck": 0, "failed": [], "lost": [],
    "seconds": 7200.0,
}  # fmt: skip


def test_a_quiet_run_is_good() -> None:
    assert bad(GOOD) == []


@pytest.mark.parametrize(
    ("what", "value"),
    [("stuck", 1), ("failed", ["HTTP 500"]), ("lost", ["1006"])]
    + [("growth", GOOD["growth"] | {name: {"grows": True}}) for name in NAMES],
)
def test_growth_silence_and_broken_calls_are_not(what: str, value: Any) -> None:
    assert len(bad(GOOD | {what: value})) == 1


def memory(mb_per_s: float = 0.0, gone: int = 0) -> list[Sample]:
    """Three minutes; the first third climbs by itself, as a start does."""
    out = []
    for t in range(180):
        mb = 900.0 + min(t, 60) * 2.0 + mb_per_s * t + (t * 7919 % 13) / 10
        out.append(Sample(float(t), None, None if t < gone else mb, {}))
    return out


QUIET = [CallLog(up_s=20.0 * i, down_s=20.0 * i + 19.5) for i in range(9)]
QUIET += [CallLog(up_s=60.0 * i, down_s=60.0 * i + 59.0) for i in range(3)]
BUSIER = [log for log in QUIET if log.up_s is not None and not 40.0 <= log.up_s < 130.0]
"""Two lines; and the same where for a while nobody was taken."""


def counts(logs: list[CallLog] = QUIET, **leak: float) -> list[Held]:
    """Every 2.5 s. Each live call holds something, and more the longer it lasts. leak: each by so
    much a second."""
    out = []
    for i in range(72):
        t = 2.5 * i
        n = {name: leak.get(name, 0.0) * t for name in COUNTS}
        ages = [t - log.up_s for log in logs if log.up_s <= t < log.down_s]  # type: ignore[operator]
        swing = sum(600 + 5 * age for age in ages)
        out.append(
            Held(
                at_s=t,
                objects=int(10_000 + swing + n["objects"]),
                tasks=int(6 + 7 * len(ages) + i % 3 + n["tasks"]),
                blocks=int(1_340_000 + 4 * swing + n["blocks"]),
                heap_mb=410.0 + 2.0 * len(ages) + (i * 7919 % 13) / 10 + n["heap_mb"],
                threads=int(10 + n["threads"]),
                files=int(17 + len(ages) + i % 2 + n["files"]),
            )
        )
    return out


def grown(samples: list[Sample], looks: list[Held], logs: list[CallLog] = QUIET) -> list[str]:
    return [name for name, one in growth(samples, looks, logs, 180.0).items() if one.grows]


def test_calls_that_come_and_go_are_no_growth() -> None:
    assert grown(memory(), counts()) == []


def test_more_calls_at_the_end_than_before_are_none_either() -> None:
    assert grown(memory(), counts(BUSIER), BUSIER) == []


@pytest.mark.parametrize("logs", [QUIET, BUSIER])
@pytest.mark.parametrize(
    ("name", "a_second"),
    [("objects", 20.0), ("tasks", 0.2), ("blocks", 300.0), ("heap_mb", 0.08), ("threads", 0.1),
     ("files", 0.1)],
)  # fmt: skip
def test_a_leak_of_a_little_a_turn_or_a_call_is_found(
    name: str, a_second: float, logs: list[CallLog]
) -> None:
    assert grown(memory(), counts(logs, **{name: a_second}), logs) == [name]


def test_what_windows_and_caches_take_until_they_are_full_is_allowed() -> None:
    assert grown(memory(), counts(blocks=120.0, heap_mb=0.015, objects=2.0)) == []


def test_resident_memory_is_judged_in_long_runs_only() -> None:
    climbs = GOOD | {"growth": GOOD["growth"] | {"memory_mb": {"grows": True}}}
    assert bad(climbs) == ["memory_mb grows"]
    assert bad(climbs | {"seconds": 180.0}) == []


def test_a_leak_of_memory_is_found_and_measured() -> None:
    samples = memory(0.05)
    assert grown(samples, counts()) == ["memory_mb"]
    found = growth(samples, counts(), QUIET, 180.0)["memory_mb"]
    assert found.low < 180.0 < found.high


def test_moments_without_a_process_are_left_out() -> None:
    assert grown(memory(gone=5), counts()) == []
    with pytest.raises(ValueError, match="samples after"):
        growth(memory(gone=180), counts(), QUIET, 180.0)


def test_its_callers_come_and_go() -> None:
    assert all(group.call_s is not None for group in load_scenario("soak").callers)


async def test_what_this_process_holds_is_seen() -> None:
    """A real leak, of tasks and what they hold, and a real look at it."""
    before = held.look()
    kept = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(50)]
    await asyncio.gather(*kept)
    held_bytes = bytearray(8 << 20)
    garbage: list[Any] = []
    for _ in range(500):
        garbage = [garbage]
    garbage[0].append(garbage)
    del garbage
    after = held.look()
    assert after.tasks - before.tasks == 50
    assert after.heap_mb - before.heap_mb == pytest.approx(len(held_bytes) / 2**20, abs=4.0)
    assert after.blocks > before.blocks + 50
    assert 50 <= after.objects - before.objects < 400, "what waits for a collection is not held"
    left, right = socket.socketpair()
    with left, right:
        assert held.look().files == after.files + 2
    assert math.isclose(after.at_s, asyncio.get_running_loop().time(), abs_tol=60.0)


def test_looks_are_written_down_and_read(tmp_path: Path) -> None:
    path = tmp_path / "held.jsonl"
    assert held.read(path) == []
    one = held.look()
    path.write_text(f'{json.dumps(asdict(one))}\n{{"at')
    assert held.read(path) == [one]
