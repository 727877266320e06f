"""Recordings: two channels on one clock, kept as long as they may be, and never in the way."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.fakes import Scene, say, silence
from voice_agent.audio import read_wav
from voice_agent.config import RecordingConfig
from voice_agent.events import ReplyDone, ReplyStatus
from voice_agent.recording import DAY_S, MAX_WAITING, Recorder, TwoChannels
from voice_agent.replay.compare import rows
from voice_agent.replay.play import replay
from voice_agent.replay.tape import load
from voice_agent.types import IN_FRAME, OUT_FRAME, OUT_RATE

pytestmark = pytest.mark.unit

FRAME_S = 0.02


def ones(n: int, level: int) -> np.ndarray:
    return np.full(n, level, np.int16)


def test_channels_stay_together_whatever_is_missing() -> None:
    both = TwoChannels()
    parts = []
    for k in range(1, 151):
        at_s = k * FRAME_S
        if not 50 < k <= 75:  # half a second in which the caller sent nothing
            both.caller(ones(IN_FRAME, 3000 if k > 75 else 1000), at_s)
        both.agent(ones(OUT_FRAME, 2000 if k > 75 else 500), at_s)
        if k % 50 == 0:
            parts.append(both.take(at_s))
    parts.append(both.take(3.0, all_of_it=True))
    sound = np.concatenate(parts)
    assert len(sound) == 3 * OUT_RATE
    turned = OUT_RATE * 3 // 2
    assert int(np.argmax(sound[:, 1] > 1500)) == turned
    assert abs(int(np.argmax(sound[:, 0] > 2000)) - turned) < OUT_RATE // 20
    assert not sound[OUT_RATE * 11 // 10 : OUT_RATE * 14 // 10, 0].any()


def test_a_caller_who_sends_nothing_delays_no_write() -> None:
    both = TwoChannels()
    written = 0
    for k in range(1, 501):
        both.agent(ones(OUT_FRAME, 700), k * FRAME_S)
        if k % 50 == 0:
            written += len(both.take(k * FRAME_S))
    assert written == 9 * OUT_RATE


def recorded_scene(folder: Path, **settings: object) -> Scene:
    scene = Scene("It is four.", greeting="Hello there.")
    recorder = Recorder(RecordingConfig(folder=folder, **settings))  # type: ignore[arg-type]
    scene.stack.make_call = recorder.make_call
    scene.play(silence(900), say("what is the time"), tail_ms=4000)
    recorder.close()
    return scene


def test_a_call_is_kept_as_sound_and_as_a_tape_that_replays(tmp_path: Path) -> None:
    scene = recorded_scene(tmp_path)
    (wav,), (tape,) = tmp_path.glob("*.wav"), tmp_path.glob("*.call")
    assert wav.stem == tape.stem
    assert wav.stat().st_mode & 0o077 == tape.stat().st_mode & 0o077 == 0
    sound = read_wav(wav, OUT_RATE)
    assert sound.source_channels == 2
    ticks = len(scene.frames)
    assert abs(len(sound.pcm) - ticks * OUT_FRAME) <= OUT_FRAME
    recorded = load(tape)
    replayed = replay(recorded)
    assert all(row.same for row in rows(recorded.tape.decisions, replayed.decisions))
    assert replayed.guessed == 0


def test_without_replays_only_the_sound_is_kept(tmp_path: Path) -> None:
    recorded_scene(tmp_path, replays=False)
    assert [path.suffix for path in tmp_path.iterdir()] == [".wav"]


def test_old_recordings_go_and_other_files_stay(tmp_path: Path) -> None:
    old, new, other = (
        tmp_path / name
        for name in ("20200101T000000-ab.wav", "20200109T000000-cd.call", "notes.wav")
    )
    for path, age_days in ((old, 3.0), (new, 1.0), (other, 90.0)):
        path.write_text("")
        at = 1e9 - age_days * DAY_S
        os.utime(path, (at, at))
    recorder = Recorder(RecordingConfig(folder=tmp_path, keep_days=2.0), wall=lambda: 1e9)
    recorder.close()
    assert not old.exists()
    assert new.exists()
    assert other.exists()


def test_a_disk_that_hangs_costs_the_recording_and_not_the_call(tmp_path: Path) -> None:
    go = threading.Event()
    scene = Scene("It is four.", greeting="Hello there.")
    recorder = Recorder(RecordingConfig(folder=tmp_path))
    for _ in range(MAX_WAITING):
        assert recorder.submit(lambda: bool(go.wait(60)) and None)
    scene.stack.make_call = recorder.make_call
    scene.play(silence(900), say("what is the time"), tail_ms=4000)
    assert ReplyStatus.COMPLETED in [e.status for e in scene.of(ReplyDone)]
    go.set()
    recorder.close()
    assert not list(tmp_path.glob("*.wav"))


def test_the_announcement_is_said_first_and_to_its_end() -> None:
    scene = Scene("It is four.", greeting="Hello there.")
    scene.stack.announcement = "This call is recorded."
    scene.play(silence(100), say("stop please"), tail_ms=4000)
    first = scene.of(ReplyDone)[0]
    assert first.text.strip() == "This call is recorded. Hello there."
    assert (first.status, first.heard) == (ReplyStatus.COMPLETED, first.text)
