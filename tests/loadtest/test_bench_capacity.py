"""The simulated server: its time, its cores, what it counts, and what it says of the baseline."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from loadtest.bench.capacity import paper
from loadtest.bench.capacity.bench import seconds_for, verdict
from loadtest.bench.capacity.clips import ALIGN, Clip, Judge
from loadtest.bench.capacity.clock import Cores, ServerLoop
from loadtest.bench.capacity.paper import Demand
from loadtest.bench.capacity.path import PARTS, mean_path, path_ms, slowest
from loadtest.bench.capacity.times import Machine, SttTimes, VoiceTimes, gpu, machine_from, roofline
from loadtest.bench.capacity.words import Words
from loadtest.bench.capacity.world import BASELINE, OURS, Load, answers, simulate
from voice_agent.replay.virtual_loop import run_virtual
from voice_agent.trace import TurnTrace
from voice_agent.types import TurnId
from voice_agent.vad import WINDOW

pytestmark = pytest.mark.unit

VOICE = VoiceTimes(
    first_ms=40.0, word_ms=2.0, piece_ms=5.0, second_ms=10.0, pieces_s=(0.5, 1.0), word_s=0.3,
    later=1,
)  # fmt: skip


# ---------------------------------------------------------------- time and cores


def on_cores(n: float, jobs: list[tuple[float, float]]) -> list[float]:
    """When each (begin, work) is done, in seconds from the start."""
    loop = ServerLoop()

    async def main() -> list[float]:
        start, cores = loop.time(), Cores(loop, n)

        async def one(begin_s: float, work_s: float) -> float:
            await asyncio.sleep(begin_s)
            await cores.work(work_s)
            return loop.time() - start

        return list(await asyncio.gather(*(one(*job) for job in jobs)))

    return run_virtual(main(), loop)


def test_alone_work_takes_its_time() -> None:
    assert on_cores(1, [(0.0, 2.0)]) == pytest.approx([2.0])


def test_as_many_as_cores_do_not_wait() -> None:
    assert on_cores(2, [(0.0, 2.0), (0.0, 1.0)]) == pytest.approx([2.0, 1.0])


def test_more_than_cores_share_them() -> None:
    assert on_cores(2, [(0.0, 2.0)] * 3) == pytest.approx([3.0] * 3)


def test_a_latecomer_slows_those_who_are_there() -> None:
    """One second alone, then both at half: the first needs 1 s more, which takes 2."""
    assert on_cores(1, [(0.0, 2.0), (1.0, 2.0)]) == pytest.approx([3.0, 4.0])


def test_beside_each_other_threads_are_slower_than_alone() -> None:
    loop = ServerLoop()

    async def main() -> list[float]:
        start, cores = loop.time(), Cores(loop, 2, beside=1.25)

        async def one(work_s: float) -> float:
            await cores.work(work_s)
            return loop.time() - start

        return list(await asyncio.gather(one(2.0), one(1.0)))

    assert run_virtual(main(), loop) == pytest.approx([2.25, 1.25]), (
        "one second together, then alone"
    )


def test_work_whose_waiter_left_is_done_all_the_same() -> None:
    loop = ServerLoop()

    async def main() -> float:
        start, cores = loop.time(), Cores(loop, 1)
        gone = asyncio.ensure_future(cores.work(2.0))
        await asyncio.sleep(0.5)
        gone.cancel()
        await cores.work(1.0)
        return loop.time() - start

    assert run_virtual(main(), loop) == pytest.approx(2.5), "0.5 alone, then 1.0 at half the speed"


def test_deliveries_are_held_until_they_are_let_go() -> None:
    loop, told = ServerLoop(), list[int]()

    async def main() -> None:
        with loop.holding() as held:
            loop.call_soon_threadsafe(told.append, 1)
        await asyncio.sleep(0.1)
        assert told == []
        for callback, arguments in held:
            callback(*arguments)
        loop.call_soon_threadsafe(told.append, 2)
        await asyncio.sleep(0.1)

    run_virtual(main(), loop)
    assert told == [1, 2]


def test_a_busy_loop_keeps_everybody() -> None:
    loop = ServerLoop()

    async def main() -> float:
        start = loop.time()
        loop.call_later(0.01, loop.busy, 0.5)
        await asyncio.sleep(0.02)
        return loop.time() - start

    assert run_virtual(main(), loop) == pytest.approx(0.51)
    assert loop.busy_s == 0.5


# ---------------------------------------------------------------- what stages take


def test_pieces_are_as_long_as_the_words() -> None:
    for n_words in (1, 3, 7, 20):
        for clause in (0, 1):
            lengths = VOICE.lengths(n_words, clause)
            assert sum(lengths) == pytest.approx(n_words * VOICE.word_s)
            assert max(lengths) <= VOICE.pieces_s[-1]
            assert lengths[0] == pytest.approx(min(VOICE.pieces_s[clause], n_words * VOICE.word_s))


def test_a_longer_first_piece_takes_as_much_longer_as_its_sound() -> None:
    assert VOICE.work_s(10, 0, 0) == pytest.approx(0.060)
    assert VOICE.work_s(10, 1, 0) == pytest.approx(0.065), "half a second of sound more"
    assert VOICE.work_s(10, 0, 1) == pytest.approx(0.015), "a second of sound"
    assert VOICE.work_s(1, 0, 9) == pytest.approx(0.008), "the last one: all of the 0.3 s there are"


def test_a_pass_grows_with_words_and_beyond_the_window_with_sound() -> None:
    stt = SttTimes(base_ms=100.0, second_ms=10.0, word_ms=2.0)
    assert stt.pass_s(3.0, 10) == pytest.approx(0.120)
    assert stt.pass_s(9.0, 10) == pytest.approx(0.120)
    assert stt.pass_s(19.0, 10) == pytest.approx(0.220)


def test_the_roofline_reads_the_weights_once_a_step() -> None:
    engine = roofline()
    one, many = engine.predict_decode_ms(1), engine.predict_decode_ms(64)
    assert one == pytest.approx(0.5 + (15.0 + 0.131) / (4.3 * 0.75), rel=0.01)
    assert many < 2 * one, "64 contexts are about half of the weights"
    assert engine.predict_prefill_ms(128) < 1.1 * one, "up to 206 tokens cost like the weights"
    assert engine.predict_prefill_ms(2048) > 9 * engine.predict_prefill_ms(128)


def test_a_machine_is_the_same_from_a_file() -> None:
    told = gpu(0.1)
    assert machine_from(json.loads(json.dumps(asdict(told)))) == told


def test_a_turns_parts_are_all_of_its_time() -> None:
    marks = [0.0, 0.1, 0.25, 0.25, 0.3, 0.32, 0.4, 0.5]
    names = [PARTS[0][1], *(end for _, _, end in PARTS)]
    trace = TurnTrace(TurnId("c", 0), marks=dict(zip(names, marks, strict=True)))
    path = path_ms(trace)
    assert path is not None
    assert sum(path.values()) == pytest.approx(trace.voice_to_voice_ms)
    assert path["recognition"] == pytest.approx(150.0)
    del trace.marks[names[2]]
    assert path_ms(trace) is None


def test_the_slowest_turns_are_split_apart() -> None:
    quick = dict.fromkeys((name for name, _, _ in PARTS), 10.0)
    slow = quick | {"voice": 900.0}
    paths = [quick] * 30 + [slow] * 2
    assert slowest(paths) == [slow, slow]
    assert mean_path(slowest(paths)) == slow
    assert mean_path([]) == {}


def test_words_spell_what_they_were_given() -> None:
    words = Words()
    for text in answers():
        ids = words.encode(text)
        assert words.decode(ids) == text
        assert 1.0 <= len(ids) / len(text.split()) <= 2.0


# ---------------------------------------------------------------- on paper


def run(**changes: Any) -> dict[str, Any]:
    names = ("recognition", "end-of-turn model", "engine", "voice", "event loop")
    body = {
        "mode": OURS, "calls": 10, "wall_s": 100.0, "stuck": 0, "failed": 0, "refused": 0,
        "recoveries": 0, "holes": 0, "predicts": False,
        "engine_tokens": 5000, "engine_prompt_tokens": 2000,
        "busy": dict.fromkeys(names, 0.1), "work_s": dict.fromkeys(names, 10.0),
        "voice_to_voice_ms": {"p50": 500.0, "p95": 700.0, "p99": 900.0},
        "glitches_per_min": 0.0,
    }  # fmt: skip
    return body | changes


def machine(**changes: Any) -> Machine:
    return replace(gpu(0.1, at_once=1.0), **changes)


def test_demand_is_counted_for_one_call_and_second() -> None:
    demand = paper.demand_of(run())
    assert demand.work["recognition"] == pytest.approx(0.01)
    assert demand.tokens == pytest.approx(5.0)
    assert demand.prompt_tokens == pytest.approx(2.0)


def test_the_stage_that_takes_most_fills_first() -> None:
    work = {"recognition": 0.05, "end-of-turn model": 0.001, "voice": 0.01, "event loop": 0.002}
    lines = paper.on_paper(machine(), Demand(work, 5.0, 2.0))
    alone = {line.stage: line for line in lines}
    assert alone["recognition"].calls == pytest.approx(0.85 / 0.05)
    assert lines[0].stage == paper.DEVICE, "which runs recognition, voice and engine"
    assert [line.calls for line in lines] == sorted(line.calls for line in lines)
    assert all(line.setting for line in lines)


def test_two_recognisers_carry_twice_the_calls() -> None:
    work = {"recognition": 0.05, "end-of-turn model": 0.0, "voice": 0.0, "event loop": 0.0}
    one, two = (
        {x.stage: x.calls for x in paper.on_paper(machine(stt_workers=n), Demand(work, 5.0, 2.0))}
        for n in (1, 2)
    )
    assert two["recognition"] == pytest.approx(2 * one["recognition"])


def test_the_first_full_stage_is_that_of_the_smallest_load() -> None:
    light = run(calls=10)
    heavy = run(calls=20, busy={**light["busy"], "voice": 0.9})
    heavier = run(calls=40, busy={**light["busy"], "voice": 0.99, "engine": 0.99})
    assert paper.first_full(machine(), [heavier, light, heavy]) == ("voice", 20, 0.9)


def test_where_nothing_is_full_the_busiest_is_named() -> None:
    busiest = run(busy={**run()["busy"], "engine": 0.5})
    assert paper.first_full(machine(), [busiest]) == ("engine", 10, 0.5)


@pytest.mark.parametrize(
    ("what", "holds"),
    [
        ({}, True),
        ({"failed": 1}, False),
        ({"glitches_per_min": 4.0}, False),
        ({"voice_to_voice_ms": {"p50": 500.0, "p95": 1300.0, "p99": 1400.0}}, False),
        ({"voice_to_voice_ms": {"p50": None, "p95": None, "p99": None}}, False),
    ],
)
def test_what_keeps_to_the_objective(what: dict[str, Any], holds: bool) -> None:
    assert paper.holds(machine(), run(**what)) is holds


def test_two_voices_carry_twice_the_calls() -> None:
    work = {"recognition": 0.0, "end-of-turn model": 0.0, "voice": 0.05, "event loop": 0.0}
    one, two = (
        {x.stage: x.calls for x in paper.on_paper(machine(voice_workers=n), Demand(work, 5.0, 2.0))}
        for n in (1, 2)
    )
    assert two["voice"] == pytest.approx(2 * one["voice"])


def test_what_all_run_on_is_named_where_it_is_full() -> None:
    full = run(work_s={**run()["work_s"], "engine": 80.0}, busy={**run()["busy"], "voice": 0.99})
    stage, _, share = paper.first_full(machine(), [full])
    assert stage == paper.DEVICE
    assert share == pytest.approx(1.0)


@pytest.mark.parametrize("what", ["stuck", "failed", "refused", "recoveries"])
def test_what_a_load_must_not_do_to_be_survived(what: str) -> None:
    assert paper.survives(run())
    assert not paper.survives(run(**{what: 1}))


def test_the_verdict_is_of_the_highest_load_that_both_survive() -> None:
    slow = {"p50": 1000.0, "p95": 2000.0, "p99": 3600.0}
    runs = [
        run(calls=10), run(calls=10, mode=BASELINE, voice_to_voice_ms=slow),
        run(calls=20), run(calls=20, mode=BASELINE, voice_to_voice_ms=slow, holes=7),
        run(calls=40), run(calls=40, mode=BASELINE, stuck=1),
    ]  # fmt: skip
    found = verdict(machine(), runs)
    assert found["both_survive"] == 20
    assert found["p99_times_better"] == pytest.approx(4.0)
    assert (found["holes"], found["baseline_holes"]) == (0, 7)
    assert found["times_better"][10]["p50"] == pytest.approx(2.0)
    assert found["carries"] == {OURS: 40, BASELINE: 0}, "1.2 s is four times the target"


def test_without_such_a_load_there_is_no_ratio() -> None:
    found = verdict(machine(), [run(), run(mode=BASELINE, failed=2)])
    assert found["both_survive"] is None
    assert "p99_times_better" not in found


def test_errors_are_shares_of_the_real_figures() -> None:
    stages = {"first_text": {"p50": 50.0}, "playout": {"p50": 0.0}, "unknown": {"p50": 1.0}}
    real = {"voice_to_voice_ms": {"p50": 400.0, "p95": None}, "stages_ms": stages}
    twin = {
        "voice_to_voice_ms": {"p50": 500.0, "p95": 700.0},
        "stages_ms": {"first_text": {"p50": 40.0}, "playout": {"p50": 1.0}},
    }
    found = paper.errors(real, twin)
    assert found["voice_to_voice_p50"] == pytest.approx(0.25)
    assert found["voice_to_voice_p95"] is None
    assert found["first_text_p50"] == pytest.approx(-0.2)
    assert found["playout_p50"] is None
    assert "unknown_p50" not in found


def test_runs_last_until_a_p99_has_its_turns() -> None:
    assert seconds_for(100) == pytest.approx(120.0)
    assert seconds_for(1) == 300.0
    assert seconds_for(10_000) == 30.0


# ---------------------------------------------------------------- the server


def clip(name: str = "one", seconds: float = 1.92) -> Clip:
    n = int(seconds * 16_000) // ALIGN * ALIGN
    voiced = n - 8 * WINDOW
    words = ("when", "does", "the", "library", "open?")
    ends = tuple(voiced * (i + 1) // len(words) for i in range(len(words)))
    sound = np.full(n, 3000, np.int16)
    sound[voiced:] = 0
    probs = tuple(0.98 if (i + 1) * WINDOW <= voiced else 0.01 for i in range(n // WINDOW))
    return Clip(name, sound, words, ends, probs, voiced // WINDOW * WINDOW)


CLIPS = [clip(), clip("two", 3.2)]


def simulated(mode: str, calls: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """changes: of the machine, but for those of the load."""
    names = ("max_calls", "predicts", "ramp_s")
    of_load = {"ramp_s": 2.0} | {name: changes.pop(name) for name in names if name in changes}
    load = Load(calls, seconds, **of_load)
    return simulate(machine(**changes), mode, load, CLIPS, Judge())


def test_calls_are_answered_in_virtual_time_and_always_alike() -> None:
    one, again = (simulated(OURS, 3, 20.0) for _ in range(2))
    assert one == again
    assert one["simulated"] is True
    assert one["turns"] >= 4
    assert [one[name] for name in ("stuck", "failed", "holes", "faults")] == [0, 0, 0, []]
    wait = one["voice_to_voice_ms"]
    assert 200.0 < wait["p50"] < 700.0, "an end-of-turn silence and little more, in virtual time"
    assert set(one["busy"]) == set(one["work_s"])
    assert all(0.0 < share < 1.0 for share in one["busy"].values())


def test_order_of_arrival_and_static_batches_answer_later() -> None:
    ours, theirs = (simulated(mode, 16, 12.0) for mode in (OURS, BASELINE))
    assert theirs["hit_rate"] == 0.0 < ours["hit_rate"]
    assert ours["voice_to_voice_ms"]["p95"] < theirs["voice_to_voice_ms"]["p95"]


def test_a_recogniser_that_is_too_slow_is_named() -> None:
    slow = simulated(OURS, 12, 10.0, stt=SttTimes(500.0, 0.0, 0.0), device=8.0)
    busiest, _, share = paper.first_full(machine(device=8.0), [slow])
    assert busiest == "recognition"
    assert share > 0.6


def test_who_comes_when_all_lines_are_taken_is_refused() -> None:
    body = simulated(OURS, 4, 3.0, max_calls=2)
    assert body["refused"] == 2
    assert not paper.survives(body)


def test_admission_that_predicts_lets_in_what_can_be_carried() -> None:
    """A recogniser of a second a pass: the first few fill it."""
    slow = {"stt": SttTimes(1000.0, 0.0, 0.0), "device": 8.0}
    body = simulated(OURS, 12, 10.0, predicts=True, ramp_s=10.0, **slow)
    assert 0 < body["refused"] < 12
    assert body["refused_for"]
    assert body["turns"] > 0
