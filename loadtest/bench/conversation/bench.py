"""Runs every scene through every system, in a few processes, and gathers the figures."""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from loadtest.report import hardware
from voice_agent.measure import load_voice
from voice_agent.models import ModelStore
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.vad import SileroVad

from . import synthetic
from .alignment import Aligner
from .baseline import PLAIN, SMART_TURN, run_baseline
from .build import FULL, QUICK, build, seed_of
from .ends import Ends
from .kept import Kept
from .ours import Kit, run_ours
from .report import whole
from .scene import REPLIES, Kind, Scene
from .score import Scored, score
from .sounds import Labeller, Library, by_kind, read_folder, read_prompts
from .stages import measured
from .virtual import Recall, StageTimes, Studio, VirtualSmartTurn
from .watch import Run

log = logging.getLogger(__name__)

OURS = "ours"
LLM = "smollm2-135m"  # whose step times the table has
MANNERS = {manner.name: manner for manner in (PLAIN, SMART_TURN)}
SYSTEMS = (OURS, *MANNERS)
ROOT = Path(__file__).parents[3]
CLIPS = (ROOT / "tests" / "data" / "clips",)


@dataclass(frozen=True, slots=True)
class Done:
    """One scene through every system."""

    scores: dict[str, Scored]
    minutes: dict[str, float]
    real_ms: list[tuple[float, float]]
    faults: list[str]


def library(
    clips: Path | None,
    vad: SileroVad,
    store: ModelStore,
    half: int | None,
    made: int,
    kept: Kept,
) -> Library:
    """Every sound there is here; of two recordings with one name the first counts. made: how many
    synthetic backchannels are worth their time."""
    labeller = Labeller(vad, kept)
    folders: Iterable[Path] = [clips] if clips is not None else [c for c in CLIPS if c.is_dir()]
    found = {s.name: s for folder in reversed(list(folders)) for s in read_folder(folder, labeller)}
    turns, acks = by_kind(list(found.values()))
    prompts, starts = ([], []) if clips is not None else read_prompts(labeller)
    return Library(
        turns=(*turns, *prompts),
        starts=tuple(starts),
        backchannels=(*acks, *synthetic.backchannels(store, labeller, half, made, kept)),
        coughs=tuple(synthetic.coughs()),
        clatter=tuple(synthetic.clatter()),
    )


class Worker:
    """One process's models, and scenes through them."""

    def __init__(
        self,
        store: ModelStore,
        times: StageTimes,
        systems: Sequence[str] = SYSTEMS,
        kept: Path | None = None,
    ) -> None:
        self._systems = systems
        known = Kept(kept)
        self.recall = Recall(WhisperRecognizer(store.path("whisper-tiny.en")), times, known)
        self.kit = Kit(
            SileroVad(),
            self.recall,
            VirtualSmartTurn(store.path("smart-turn-v3.2"), times, known),
            Studio(load_voice(store, "piper-joe", threads=1), known),
            times,
            Ends(LLM, store.path(LLM), known),
        )
        self._aligner = Aligner(store.path("whisper-tiny.en"))
        self._kept = known
        self._heard_at = {t: self._align(t) for t in REPLIES}

    def _align(self, text: str) -> list[int]:
        sound = self.kit.sound_of(text)
        key = Kept.key("aligner", text, sound)
        known: list[int] | None = self._kept.get(key)
        if known is None:
            known = self._aligner.heard_at(text, sound)
            self._kept.put(key, known)
        return known

    def words_at(self, text: str, samples: int) -> int:
        """Words of a reply of which `samples` have been played."""
        return sum(at <= samples for at in self._heard_at[text])

    def run(self, scene: Scene) -> Done:
        self.recall.real_ms.clear()
        seed = seed_of(scene)
        runs: dict[str, Run] = {}
        for name in self._systems:
            runs[name] = (
                run_ours(scene, self.kit, seed)
                if name == OURS
                else run_baseline(scene, self.kit, seed, MANNERS[name])
            )
        return Done(
            {name: score(r, self.words_at) for name, r in runs.items()},
            {name: r.now_ms / 60_000 for name, r in runs.items()},
            list(self.recall.real_ms),
            [f"{scene.name}: {fault}" for run in runs.values() for fault in run.faults],
        )


_worker: Worker | None = None


def _begin(times: StageTimes, systems: Sequence[str], kept: Path | None) -> None:
    global _worker
    logging.disable(logging.WARNING)  # faults are counted, not told one by one
    _worker = Worker(ModelStore(), times, systems, kept)


def _one(scene: Scene) -> Done:
    assert _worker is not None
    return _worker.run(scene)


def run(
    clips: Path | None,
    half: int | None,
    *,
    quick: bool,
    jobs: int,
    only: Sequence[str],
    measure_stages: bool,
    events: Path | None,
    names: Sequence[str] = SYSTEMS,
    kept: Path | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """The whole benchmark. names: of the systems. kept: the models' answers, from run to run.
    most: events of a kind. Raises the model store's errors when a model is missing."""
    began = time.monotonic()
    store = ModelStore()
    times = measured(store) if measure_stages else StageTimes()
    counts = {
        k: n if most is None else min(n, most)
        for k, n in (QUICK if quick else FULL).items()
        if not only or k in only
    }
    known = Kept(kept)
    sounds = library(clips, SileroVad(), store, half, counts.get(Kind.BACKCHANNEL, 0), known)
    known.close()
    scenes = build(sounds, half, {k: counts.get(k, 0) for k in Kind})
    done = _through(scenes, jobs, (times, names, kept))
    systems = {name: [d.scores[name] for d in done] for name in names}
    if events is not None:
        lines = (json.dumps({"system": n} | asdict(e)) for n, es in systems.items() for e in es)
        events.write_text("\n".join(lines) + "\n", "utf-8")
    ratios = [now / table for d in done for now, table in d.real_ms if table]
    faults = [f for d in done for f in d.faults]
    return {
        "hardware": hardware(),
        "clips": str(clips.name) if clips is not None else "default",
        "half": "all" if half is None else half,
        "quick": quick,
        "stage_times_ms": asdict(times),
        "files": {"turns": len({p.sound.name for s in scenes for p in s.plays if p.sound.human})},
        "scenes": len(scenes),
        "virtual_minutes": round(sum(d.minutes[names[0]] for d in done), 1),
        "seconds": round(time.monotonic() - began),
        "recogniser_now_to_table": round(statistics.median(ratios), 2) if ratios else None,
        "faults": faults,
        "systems": whole(systems),
    }


def _through(
    scenes: Sequence[Scene], jobs: int, begin: tuple[StageTimes, Sequence[str], Path | None]
) -> list[Done]:
    """In the scenes' order, whatever process ran which."""
    with ProcessPoolExecutor(
        max(1, jobs), get_context("spawn"), initializer=_begin, initargs=begin
    ) as pool:
        done: list[Done] = []
        for one in pool.map(_one, scenes, chunksize=4):
            done.append(one)
            if len(done) % 50 == 0:
                print(f"{len(done)} of {len(scenes)} scenes", file=sys.stderr, flush=True)
        return done
