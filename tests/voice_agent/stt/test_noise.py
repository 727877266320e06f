"""What noise may cost the recogniser, and whom it delays: nobody who speaks."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from tests.support.fakes import Scene, cough, say, silence
from tests.support.stages import Cost, VirtualRecognizer
from tests.support.virtual_loop import VirtualLoop, run_virtual
from voice_agent.clock import ManualClock
from voice_agent.stt.noise import BURST_S, PATIENCE_S, SHARE, SUSPECT_AT, CallNoise, NoiseWatch
from voice_agent.stt.streaming import Utterance

pytestmark = pytest.mark.unit

COST = Cost(0.06, 0.005)
"""A pass of tiny.en on one core: seconds, and per second of audio."""
MINUTES = 1.0
TARGET_S = 0.6
WAIT_S = 0.192
"""From a pause's pass to the earliest commit: the transcript is not needed before."""


def watch(pass_s: float = 0.1) -> tuple[ManualClock, NoiseWatch]:
    clock = ManualClock(100.0)
    made = NoiseWatch(clock)
    made.pass_s.note(pass_s)
    return clock, made


def suspect(shared: NoiseWatch, *, spoke: bool = False) -> CallNoise:
    call = shared.open_call()
    if spoke:
        call.heard(True, 0.1)
    for _ in range(SUSPECT_AT):
        call.claim(patient=True)
        call.heard(False, 0.1)
    return call


def test_a_caller_is_a_suspect_after_passes_without_a_word_and_trusted_with_the_first() -> None:
    _, shared = watch()
    call = suspect(shared)
    assert call.suspect
    call.heard(True, 0.1)
    assert not call.suspect
    assert call.claim(patient=False) == 0.0


def test_what_was_no_word_after_all_makes_a_suspect() -> None:
    _, shared = watch()
    call = shared.open_call()
    call.heard(True, 0.1)
    call.distrust()
    assert call.suspect


def test_a_noise_gets_its_share_of_any_minute_and_no_more() -> None:
    clock, shared = watch()
    call = suspect(shared)
    spent_s, until_s = SUSPECT_AT * 0.1, clock.now() + 60.0
    while clock.now() < until_s:
        wait_s = call.claim(patient=True)
        if wait_s is None:
            clock.advance(0.05)
            continue
        clock.advance(wait_s)
        if clock.now() < until_s:
            call.heard(False, 0.1)
            spent_s += 0.1
    assert 0.6 * SHARE * 60.0 <= spent_s <= SHARE * 60.0
    assert shared.wordless_s == pytest.approx(spent_s)


def test_callers_who_never_spoke_share_one_ration_and_one_who_did_has_its_own() -> None:
    _, shared = watch()
    strangers = [suspect(shared) for _ in range(200)]
    waits_s = [call.claim(patient=True) for call in strangers]
    assert sum(wait_s is not None for wait_s in waits_s) <= (BURST_S + PATIENCE_S * SHARE) / 0.1 + 1
    known = suspect(shared, spoke=True)
    assert known.claim(patient=True) == 0.0


def test_a_partial_does_not_wait_for_its_ration() -> None:
    clock, shared = watch(0.05)
    call = suspect(shared, spoke=True)
    while call.claim(patient=False) is not None:
        clock.advance(0.1)
    assert 0.0 < (call.claim(patient=True) or 0.0) <= PATIENCE_S


# ---------------------------------------------------------------- with the real queue


async def speaker(
    loop: VirtualLoop, recognizer: VirtualRecognizer, shared: NoiseWatch, seed: int, n_turns: int
) -> list[float]:
    """Seconds that each final took, from the pause on."""
    picks, took_s = random.Random(seed), []
    noise = shared.open_call()
    await asyncio.sleep(picks.uniform(0.0, 6.0))
    for _ in range(n_turns):
        utterance = Utterance(recognizer, noise)
        for _ in range(picks.randint(1, 3)):
            pcm = say("tell me more and what is the weather today")
            await asyncio.sleep(len(pcm) / 16_000)
            utterance.append(pcm, voiced=True)
            if picks.random() < 0.5:
                await utterance.transcribe(deadline_s=loop.now() + TARGET_S)
        utterance.append(silence(96), voiced=False)
        asked_s = loop.now()
        heard = await utterance.transcribe(deadline_s=asked_s - 0.1 + TARGET_S, pause=True)
        assert heard.words[-1] == "today"
        took_s.append(loop.now() - asked_s)
        await asyncio.sleep(picks.uniform(3.0, 6.0))
    return took_s


async def noisy(
    loop: VirtualLoop, recognizer: VirtualRecognizer, shared: NoiseWatch, seed: int
) -> None:
    """A call of clatter: a false start every second or two, for ever."""
    picks, noise = random.Random(1_000 + seed), shared.open_call()
    while True:
        await asyncio.sleep(picks.uniform(0.3, 2.0))
        utterance = Utterance(recognizer, noise)
        pcm = cough(picks.randint(300, 2500))
        await asyncio.sleep(len(pcm) / 16_000)
        utterance.append(pcm, voiced=True)
        if len(pcm) > 24_000:
            await utterance.transcribe(deadline_s=loop.now() + TARGET_S)
        utterance.append(silence(96), voiced=False)
        await utterance.transcribe(deadline_s=loop.now() - 0.1 + TARGET_S, pause=True)
        noise.over(False)


async def floor(
    loop: VirtualLoop, n_speakers: int, n_noisy: int
) -> tuple[list[float], NoiseWatch, VirtualRecognizer]:
    recognizer, shared = VirtualRecognizer(loop, COST, TARGET_S), NoiseWatch(loop)
    jobs = [asyncio.create_task(recognizer.work())]
    jobs += [asyncio.create_task(noisy(loop, recognizer, shared, n)) for n in range(n_noisy)]
    await asyncio.sleep(30.0)  # what noise they are shows in their first passes
    turns = int(60 * MINUTES / 9)
    speakers = [speaker(loop, recognizer, shared, n, turns) for n in range(n_speakers)]
    finals = await asyncio.gather(*speakers)
    for job in jobs:
        job.cancel()
        with suppress(asyncio.CancelledError):
            await job
    return [took_s for each in finals for took_s in each], shared, recognizer


def run(n_speakers: int, n_noisy: int):
    loop = VirtualLoop()
    began_s = loop.now()
    finals, shared, recognizer = run_virtual(floor(loop, n_speakers, n_noisy), loop)
    return sorted(finals), shared, recognizer, loop.now() - began_s


def test_two_hundred_calls_of_noise_delay_nobodys_final() -> None:
    quiet, _, _, _ = run(8, 0)
    busy, shared, recognizer, lasted_s = run(8, 200)
    assert len(busy) == len(quiet) >= 40
    most_s = COST.of(3.0)
    assert busy[len(busy) // 2] <= quiet[len(quiet) // 2] + 1e-6
    assert busy[-1] <= quiet[-1] + most_s, "one pass of theirs at most is in the way"
    needed = [[max(took_s, WAIT_S) for took_s in finals] for finals in (quiet, busy)]
    late = [sum(took_s > WAIT_S + 1e-9 for took_s in finals) for finals in needed]
    assert late[1] <= late[0], "no turn is committed later"
    assert shared.false_starts > 1_000
    assert shared.skipped > 1_000
    assert shared.wordless_s <= SHARE * lasted_s + 200 * SUSPECT_AT * most_s
    assert recognizer.passes < shared.false_starts


def test_one_call_of_noise_alone_gets_a_twentieth_of_the_time() -> None:
    loop = VirtualLoop()

    async def alone() -> NoiseWatch:
        recognizer, shared = VirtualRecognizer(loop, COST, TARGET_S), NoiseWatch(loop)
        jobs = [recognizer.work(), noisy(loop, recognizer, shared, 0)]
        tasks = [asyncio.create_task(job) for job in jobs]
        await asyncio.sleep(120.0)
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return shared

    shared = run_virtual(alone(), loop)
    assert 0.0 < shared.wordless_s <= SHARE * 120.0
    assert shared.false_starts > 30


# ---------------------------------------------------------------- in a call


def test_a_call_counts_its_false_starts_and_hears_words_after_them() -> None:
    scene = Scene("Of course.")
    coughs = [part for _ in range(4) for part in (cough(700), silence(900))]
    scene.play(silence(300), *coughs, say("what is the time"), tail_ms=6000)
    gauges = scene.stack.gauges()
    assert gauges["vad_false_starts_total"] >= 3
    assert gauges["stt_wordless_seconds_total"] > 0.0
    assert ("user", "what is the time") in scene.history


def test_a_caller_who_comes_after_much_noise_is_heard_at_once() -> None:
    scene = Scene("Of course.")
    scene.recognizer.delay_s = 0.7  # what the noise cost is more than its call has in a minute
    coughs = [part for _ in range(4) for part in (cough(1100), silence(900))]
    scene.play(silence(300), *coughs, say("what is the time"), tail_ms=6000)
    assert scene.stack.gauges()["stt_wordless_seconds_total"] > 2.0
    assert ("user", "what is the time") in scene.history
