"""The conversation benchmark with the real models: some scenes, every system, twice the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest

from loadtest import conversation
from loadtest.bench.conversation import bench
from loadtest.bench.conversation.baseline import PLAIN
from loadtest.bench.conversation.bench import OURS, SYSTEMS, Worker
from loadtest.bench.conversation.build import build, seed_of
from loadtest.bench.conversation.ours import run_ours
from loadtest.bench.conversation.scene import REPLIES, Kind
from loadtest.bench.conversation.score import Talked, Turned, score
from loadtest.bench.conversation.sounds import Labeller, Library, read_folder
from loadtest.bench.conversation.virtual import StageTimes
from voice_agent.models import ModelStore
from voice_agent.vad import SileroVad

pytestmark = pytest.mark.model

CLIPS = Path(__file__).parents[1] / "data" / "clips"
NAMES = ("ps_austen_0930.wav", "ps_goforward.wav")


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(ModelStore(), StageTimes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*NAMES, "transcripts.tsv"):
        shutil.copy(CLIPS / name, tmp_path)
    return tmp_path


def test_a_turn_and_an_interruption_through_every_system(worker: Worker, folder: Path) -> None:
    sounds = read_folder(folder, Labeller(SileroVad()))
    counts = {k: int(k in (Kind.SMOOTH, Kind.INTERRUPTION)) for k in Kind}
    smooth, cut_in = build(Library(tuple(sounds)), None, counts)
    turned = worker.run(smooth)
    assert set(turned.scores) == set(SYSTEMS)
    for name, done in turned.scores.items():
        assert isinstance(done, Turned)
        assert done.taken, name
        assert done.wait_ms is not None
        assert done.latency_ms > done.wait_ms > 0
    assert turned.scores[PLAIN.name].wait_ms > 700, "700 ms of silence, and the transcript"
    talked = worker.run(cut_in)
    for name, done in talked.scores.items():
        assert isinstance(done, Talked)
        assert done.valid, name
        assert done.success, "a plain detector stops at any voice"
        assert done.yield_ms is not None, name
        assert 0 < done.yield_ms < 1000, name
    assert talked.scores[PLAIN.name].error_words > 3, "it remembers what nobody heard"
    assert not talked.faults
    again = worker.run(cut_in)
    assert again.scores == talked.scores
    assert again.minutes == talked.minutes


@pytest.mark.parametrize("n", [29, 49])
def test_a_clipped_echo_alone_stops_nothing(worker: Worker, n: int) -> None:
    """In a busy room, and with a sound of ours that is new to the filter that predicts it."""
    scene = build(Library(()), None, dict.fromkeys(Kind, 0) | {Kind.ECHO: n + 1})[n]
    assert scene.echo is not None
    assert scene.echo.clipped
    done = score(run_ours(scene, worker.kit, seed_of(scene)), worker.words_at)
    assert isinstance(done, Talked)
    assert done.valid
    assert not done.stopped
    assert not done.holds


def test_the_truth_of_words_heard_follows_the_sound(worker: Worker) -> None:
    text = REPLIES[0]
    n = len(worker.kit.sound_of(text))
    heard = [worker.words_at(text, n * i // 20) for i in range(21)]
    assert heard[0] == 0
    assert heard[-1] == len(text.split())
    assert heard == sorted(heard)
    assert abs(heard[10] - len(text.split()) / 2) <= 4


def test_the_command_writes_every_figure(
    folder: Path,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "FULL", dict.fromkeys(Kind, 0) | {Kind.SMOOTH: 2})
    monkeypatch.setattr(bench, "_through", lambda scenes, *_: [worker.run(s) for s in scenes])
    monkeypatch.setattr(bench.synthetic, "backchannels", lambda *_: [])
    out, events = folder / "out.json", folder / "events.jsonl"
    monkeypatch.setattr(
        sys, "argv",
        ["conversation", "--clips", str(folder), "--half", "all", "--json", str(out),
         "--events", str(events)],
    )  # fmt: skip
    assert conversation.main() == 0
    body = json.loads(out.read_text())
    assert set(body["systems"]) == set(SYSTEMS)
    assert body["scenes"] == 2
    assert body["systems"][OURS]["turn_takeover"] == 1.0
    assert body["systems"][OURS]["response_latency_ms"] == {"p50": None, "p95": None}
    assert len(events.read_text().splitlines()) == 2 * len(SYSTEMS)
    assert "| turns taken |" in capsys.readouterr().out
    assert dataclasses.asdict(StageTimes()) == body["stage_times_ms"]
