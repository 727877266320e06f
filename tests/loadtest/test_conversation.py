"""The conversation benchmark's definitions on runs made by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench.conversation.build import FULL, build
from loadtest.bench.conversation.kept import Kept
from loadtest.bench.conversation.report import figures, percentiles, rate, whole, wilson
from loadtest.bench.conversation.room import Placed, Room
from loadtest.bench.conversation.scene import After, Echo, Kind, Play, Scene
from loadtest.bench.conversation.score import Hold, Talked, Turned, is_false_stop, score
from loadtest.bench.conversation.sounds import Library, Sound, half_of, join, split
from loadtest.bench.conversation.table import table
from loadtest.bench.conversation.watch import Commit, Over, Run, Watcher
from voice_agent.types import FRAME_MS, IN_RATE, OUT_FRAME, SILENT_OUT

pytestmark = pytest.mark.unit


def sound(*spans_ms: tuple[int, int], name: str = "a.wav", human: bool = True) -> Sound:
    """Noise in the spans, silence between and 100 ms after."""
    n = (spans_ms[-1][1] + 100) * IN_RATE // 1000
    pcm = np.zeros(n, np.int16)
    voiced = tuple((a * IN_RATE // 1000, b * IN_RATE // 1000) for a, b in spans_ms)
    for a, b in voiced:
        pcm[a:b] = np.random.default_rng(a).integers(-3000, 3000, b - a)
    return Sound(name, pcm, human, half_of(name), "", voiced)


def scene(kind: Kind, *plays: Play, **more: object) -> Scene:
    base = Scene("name", kind, "detail", True, plays, kind not in ("smooth", "pause"), 0)
    return dataclasses.replace(base, **more)


def a_run(
    kind: Kind,
    at_ms: int,
    *spans: tuple[int, int],
    ours: list[tuple[int, int, int]],
    until_ms: int,
    **more: object,
) -> Run:
    """A sound with voiced `spans` (ms from its start) at `at_ms`; `ours`: (reply, from, to) in ms:
    the ticks in which a reply moves on."""
    made = sound(*spans)
    s = scene(kind, Play(made, at_ms), **more)
    placed = [Placed(s.plays[0], at_ms * IN_RATE // 1000, made.pcm.astype(np.float32))]
    run = Run(s, placed)
    positions: dict[int, int] = {}
    for i in range(until_ms // FRAME_MS):
        ms = Run.ms(i)
        mine = [r for r, a, b in ours if a <= ms < b]
        known = [r for r, a, b in ours if a <= ms]
        open_still = [r for r, a, b in ours if ms < b]
        reply = mine[0] if mine else (known[-1] if set(known) & set(open_still) else -1)
        at = positions.get(reply, 0)
        run.reply.append(reply)
        run.audible.append(bool(mine))
        run.offset.append(at)
        run.gain.append(float(bool(mine)))
        if mine:
            positions[reply] = at + OUT_FRAME
    return run


def words_at(text: str, samples: int) -> int:
    return samples // (10 * OUT_FRAME)  # a word every 200 ms


# ---------------------------------------------------------------- turns


def test_an_answer_after_the_last_voiced_sample_takes_the_turn() -> None:
    run = a_run(Kind.SMOOTH, 500, (0, 1000), ours=[(0, 1960, 3000)], until_ms=2200)
    run.commits.append(Commit(1900.0, "hello"))
    done = score(run, words_at)
    assert isinstance(done, Turned)
    assert done.taken
    assert not done.stuck
    assert done.latency_ms == 460
    assert done.wait_ms == 400


def test_our_sound_in_a_pause_or_over_what_follows_takes_it_over() -> None:
    spans = ((0, 500), (1100, 1500), (1900, 2300))
    early = a_run(Kind.PAUSE, 500, *spans, ours=[(0, 1800, 1900)], until_ms=4000)
    assert isinstance(done := score(early, words_at), Turned)
    assert done.pauses == ((600.0, True), (400.0, False))
    assert not done.taken, "the answer came before the end"
    assert done.stuck
    late = a_run(Kind.PAUSE, 500, *spans, ours=[(0, 3000, 3400)], until_ms=4000)
    assert isinstance(done := score(late, words_at), Turned)
    assert [taken for _, taken in done.pauses] == [False, False]
    assert done.taken


def test_short_gaps_are_no_pauses_and_a_late_answer_is_none() -> None:
    run = a_run(Kind.SMOOTH, 0, (0, 500), (700, 1000), ours=[(0, 6100, 6200)], until_ms=7000)
    assert isinstance(done := score(run, words_at), Turned)
    assert done.pauses == ()
    assert not done.taken
    assert done.stuck


# ---------------------------------------------------------------- while we speak


def test_an_interruption_that_stops_us_and_is_answered_succeeds() -> None:
    ours = [(0, 400, 2160), (1, 4000, 4500)]
    run = a_run(Kind.INTERRUPTION, 2000, (0, 1000), ours=ours, until_ms=4200)
    run.overs.append(Over(2560.0, 0, False, "one two three four five six seven eight"))
    assert isinstance(done := score(run, words_at), Talked)
    assert done.success
    assert done.stopped
    assert done.stop_ms == 160
    assert done.yield_ms == 160
    assert done.holds == (Hold(400.0, False, False),), "silent until it was decided"
    assert done.error_words == 0
    assert not is_false_stop(done)


def test_an_interruption_that_is_not_answered_is_stuck() -> None:
    run = a_run(Kind.INTERRUPTION, 2000, (0, 1000), ours=[(0, 400, 2160)], until_ms=8100)
    run.overs.append(Over(2160.0, 0, False, ""))
    assert isinstance(done := score(run, words_at), Talked)
    assert not done.success
    assert done.stuck
    assert done.error_words == -8


def test_talking_on_for_over_a_second_after_the_caller_is_no_success() -> None:
    ours = [(0, 400, 4100), (1, 6000, 6500)]
    run = a_run(Kind.INTERRUPTION, 2000, (0, 1000), ours=ours, until_ms=6200)
    run.overs.append(Over(4100.0, 0, False, ""))
    assert isinstance(done := score(run, words_at), Talked)
    assert done.stopped
    assert not done.success


def test_what_the_player_had_not_played_was_not_heard() -> None:
    run = a_run(Kind.INTERRUPTION, 2000, (0, 500), ours=[(0, 400, 2400)], until_ms=2600,
                player_ms=400)  # fmt: skip
    run.overs.append(Over(2400.0, 0, False, "a b c d e f g h i j"))
    assert isinstance(done := score(run, words_at), Talked)
    assert done.error_words == 2, "of 2 s sent 1.6 s were played: 8 words"


def test_a_hold_that_ends_where_it_began_is_a_right_one() -> None:
    ours = [(0, 400, 2100), (0, 2400, 4000)]
    run = a_run(Kind.BACKCHANNEL, 2000, (0, 200), ours=ours, until_ms=4000)
    assert isinstance(done := score(run, words_at), Talked)
    assert done.holds == (Hold(300.0, True, True),)
    assert not done.stopped
    assert done.yield_ms is None, "of interruptions only"
    ahead = dataclasses.replace(
        run, offset=[o + 9600 * (i > 110) for i, o in enumerate(run.offset)]
    )
    assert isinstance(lost := score(ahead, words_at), Talked)
    assert [h.rightly for h in lost.holds] == [False], "sound was left out"


def test_a_sound_that_ends_our_reply_is_a_false_stop() -> None:
    run = a_run(Kind.COUGH, 2000, (0, 200), ours=[(0, 400, 2100)], until_ms=7800)
    run.overs.append(Over(2100.0, 0, False, ""))
    done = score(run, words_at)
    assert is_false_stop(done)
    assert done.stuck
    finished = a_run(Kind.COUGH, 2000, (0, 200), ours=[(0, 400, 2100)], until_ms=5000)
    finished.overs.append(Over(2100.0, 0, True, "all"))
    assert not is_false_stop(score(finished, words_at))


def test_a_reply_that_was_over_before_the_sound_is_void() -> None:
    run = a_run(Kind.CLATTER, 2000, (0, 200), ours=[(0, 400, 1500)], until_ms=5000)
    run.overs.append(Over(1500.0, 0, True, "all"))
    assert isinstance(done := score(run, words_at), Talked)
    assert not done.valid


# ---------------------------------------------------------------- figures


def test_intervals_and_percentiles_need_events() -> None:
    low, high = wilson(3, 60)
    assert (round(low, 4), round(high, 4)) == (0.0171, 0.1370)
    assert wilson(60, 60)[0] == pytest.approx(0.9398, abs=1e-4)
    with pytest.raises(ValueError, match="no events"):
        wilson(0, 0)
    assert rate([])["rate"] is None
    assert percentiles([1.0] * 19)["p50"] is None
    assert percentiles([None, *[1.0] * 199]) == {"n": 199, "p50": 1, "p95": None, "max": 1}
    assert percentiles(list(range(201)))["p95"] == 190


def _cut(kind: Kind, *, human: bool, stopped: bool) -> Talked:
    return Talked("n", kind, "d", human, True, stopped, False, None, None, (), 6.0, None, False)


def test_made_sound_stands_in_and_is_never_merged() -> None:
    human = [_cut(Kind.SIDE, human=True, stopped=True), _cut(Kind.SIDE, human=True, stopped=False)]
    made = [_cut(Kind.SIDE, human=False, stopped=False) for _ in range(8)]
    made.append(_cut(Kind.ECHO, human=False, stopped=True))
    body = whole({"ours": [*human, *made]})["ours"]
    assert body["false_stops"] == {"side_speech": 0.5, "echo": 1.0}
    assert body["made_classes"] == ["echo"]
    assert body["synthetic"]["false_stops"]["side_speech"] == 0.0
    keys = {
        "pause_takeover", "turn_takeover", "interruption_success", "stop_latency_ms_p95",
        "false_stops", "heard_word_error_p95", "stuck", "response_latency_ms",
    }  # fmt: skip
    assert keys < set(body)
    assert set(body["response_latency_ms"]) == {"p50", "p95"}
    lines = table({"ours": body})
    assert "| false stops: side speech | 50.0 % [9.4, 90.5] (1/2 few) |" in lines


def test_holds_are_counted_by_the_minute_of_our_speech() -> None:
    held = dataclasses.replace(
        _cut(Kind.SIDE, human=True, stopped=False),
        holds=(Hold(400, True, True), Hold(1300, True, False)),
    )
    body = figures([held, _cut(Kind.SIDE, human=True, stopped=False)])["detail"]
    holds = body["holds"]["side_speech"]
    assert holds["per_minute"] == 10
    assert holds["share"]["k"] == 1
    assert holds["over_1200_ms"] == 1
    assert body["resume_success"]["rate"] == 0.5


# ---------------------------------------------------------------- sounds, rooms, scenes


def test_words_are_parted_at_a_quiet_place_and_joined_by_silences() -> None:
    whole_turn = sound((0, 700), (800, 1500))
    whole_turn = dataclasses.replace(whole_turn, voiced=((0, 1500 * 16),))
    parted = split(whole_turn, 600)
    assert parted is not None
    (_, first_end), (second, end) = parted.voiced
    assert 700 * 16 <= first_end <= 800 * 16
    assert second - first_end == 600 * 16
    assert end == 2100 * 16
    assert split(dataclasses.replace(whole_turn, pcm=sound((0, 1500)).pcm), 600) is None
    joined = join("j", (sound((0, 300)), sound((50, 250))), [400])
    assert joined.voiced == ((0, 4800), (11200, 14400))


def test_a_room_places_sounds_by_our_reply_and_returns_our_echo() -> None:
    play = Play(sound((100, 400)), 500, After.REPLY)
    then = Play(sound((0, 200)), 300, After.SOUND)
    room = Room(scene(Kind.INTERRUPTION, play, then, echo=Echo(-6.0, 100)), 1)
    watcher = Watcher(room_scene := scene(Kind.INTERRUPTION, play, then), room)
    loud = np.full(OUT_FRAME, 8000, np.int16)
    levels = []
    for i in range(100):
        levels.append(float(np.abs(room.hear()).mean()))
        speaks = 20 <= i < 30
        room.play(loud if speaks else SILENT_OUT)
        watcher.tick(0 if speaks else -1, speaks, 0, 1.0)
    assert room_scene.kind is Kind.INTERRUPTION
    first, second = room.placed
    assert first.onset_ms == Run.ms(20) + 500
    assert second.onset_ms == first.end_ms + 300
    echo_from = next(i for i, level in enumerate(levels) if level > 1000)
    assert echo_from - 21 in (5, 6), "100 ms and the resampler's few"
    assert max(levels[60:]) > 1000, "the caller"


def test_scenes_are_chosen_by_names_from_one_half() -> None:
    turns = tuple(sound((0, 1500), name=f"{i}.wav") for i in range(40))
    library = Library(turns, coughs=(sound((0, 300), name="cough", human=False),))
    scenes = build(library, 1, FULL)
    assert {p.sound.half for s in scenes for p in s.plays} == {1}
    kinds = {k: [s for s in scenes if s.kind is k] for k in Kind}
    assert len(kinds[Kind.SMOOTH]) == FULL[Kind.SMOOTH]
    assert len(kinds[Kind.INTERRUPTION]) == FULL[Kind.INTERRUPTION]
    assert all(s.human for s in kinds[Kind.SIDE])
    assert not any(s.human for s in kinds[Kind.ECHO])
    assert len({s.name for s in scenes}) == len(scenes)
    assert [s.name for s in build(library, 1, FULL)] == [s.name for s in scenes]


def test_answers_are_kept_by_model_question_and_sound(tmp_path: Path) -> None:
    pcm = np.arange(320, dtype=np.float32)
    key = Kept.key("model", "prefix", pcm)
    others = {
        Kept.key("other", "prefix", pcm),
        Kept.key("model", "", pcm),
        Kept.key("m", "", pcm + 1),
    }
    assert len(others | {key}) == 4
    first = Kept(tmp_path / "kept")
    assert first.get(key) is None
    first.put(key, [["hello"], 0.5])
    first.put_pcm(b"sound", SILENT_OUT)
    first.close()
    again = Kept(tmp_path / "kept")
    assert again.get(key) == [["hello"], 0.5]
    assert np.array_equal(again.get_pcm(b"sound"), SILENT_OUT)
    assert again.get_pcm(b"none") is None
    again.close()
