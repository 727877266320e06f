"""Recognition, engine and voice together, in virtual time: who speaks is not made to wait.

Real queues: the recogniser's JobQueue, the engine's loop and scheduler, the voice's service. Only
the work itself is replaced by the time that it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.engine.fakes import Recorder, Sim
from tests.engine.test_playback import world
from tests.support.stages import Cost, VirtualRecognizer, VirtualVoice, speak_in_time
from tests.support.virtual_loop import VirtualLoop, run_virtual
from voice_agent.scope import CancelScope
from voice_agent.tts.base import Clause, SpokenWord
from voice_agent.tts.service import VoiceService
from voice_agent.types import IN_RATE, OUT_RATE

pytestmark = pytest.mark.unit

SPEAKING, ARRIVING = 8, 20
TARGET_S = 0.6
AHEAD_S = 0.5
"""So little sound do the eight have when their next clause is asked for."""
FIRST, LATER = 4, 9
"""Tokens, which are words here, of a first clause and of the others."""
LAST_S = 1e6
STT = Cost(0.01, 0.005)
VOICE = Cost(0.004, 0.02)
"""28 voices take three quarters of the time."""
FINAL_S = 2.0


@dataclass
class Stages:
    loop: VirtualLoop
    by_deadline: bool = True
    sim: Sim = field(init=False)
    recognizer: VirtualRecognizer = field(init=False)
    service: VoiceService = field(init=False)

    def __post_init__(self) -> None:
        self.sim = world("deadline" if self.by_deadline else "fcfs", 4000, 64)
        self.recognizer = VirtualRecognizer(self.loop, STT, TARGET_S)
        self.voice = VirtualVoice(VOICE)
        self.service = VoiceService(self.voice, self.loop, workers=0, target_s=TARGET_S)
        self.stepped = asyncio.Event()

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.recognizer.work())
            group.create_task(speak_in_time(self.service, self.voice, self.loop))
            group.create_task(self.think())

    async def think(self) -> None:
        """The engine's steps; what one made is there when its time has passed."""
        while True:
            self.sim.clock.time_s = self.loop.now()
            self.sim.step(check=False)
            await asyncio.sleep(max(0.001, self.sim.clock.time_s - self.loop.now()))
            self.stepped.set()
            self.stepped.clear()
            await asyncio.sleep(0)


class Caller:
    """Says something, and hears the answer clause by clause."""

    def __init__(self, stages: Stages, number: int, words: int) -> None:
        self.stages, self.number, self.words = stages, number, words
        self.loop, self.scope = stages.loop, CancelScope(f"caller {number}")
        self.asked_s = self.loop.now()
        self.first_s: float | None = None
        self.dry_s = 0.0
        self.holes_s: list[float] = []
        self.request_id = -1
        self.sounds = asyncio.Event()

    def due_s(self) -> float:
        return self.dry_s if self.first_s is not None else self.asked_s + TARGET_S

    async def talk(self) -> None:
        pcm = np.zeros(int(FINAL_S * IN_RATE), np.float32)
        await self.stages.recognizer.transcribe(pcm, final=True, deadline_s=self.due_s())
        self.stages.sim.clock.time_s = self.loop.now()
        prompt = [1 + self.number, *range(2, 40)]
        request, sink = self.stages.sim.submit(prompt, self.words)
        self.request_id = request.id
        clauses: asyncio.Queue[int | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.speak(clauses))
            await self.cut(sink, clauses)

    async def cut(self, sink: Recorder, clauses: asyncio.Queue[int | None]) -> None:
        taken, size = 0, FIRST
        while True:
            there = len(sink.tokens)
            while there - taken >= size or (sink.finish is not None and there > taken):
                n = min(size, there - taken)
                taken, size = taken + n, LATER
                await clauses.put(n)
            if sink.finish is not None:
                break
            await self.stages.stepped.wait()
        await clauses.put(None)

    async def speak(self, clauses: asyncio.Queue[int | None]) -> None:
        while (n := await clauses.get()) is not None:
            if self.first_s is not None:
                await asyncio.sleep(self.dry_s - self.loop.now() - AHEAD_S)
            due_s = self.due_s() if self.first_s is None else LAST_S + self.loop.now()
            due = self.due_s if self.stages.by_deadline else lambda due_s=due_s: due_s
            words = tuple(SpokenWord("word", (0, 1)) for _ in range(n))
            clause = Clause(0, "", (0, 1), words)
            async for piece in self.stages.service.speak(
                clause, speed=1.0, deadline_s=due, scope=self.scope
            ):
                self.hear(len(piece.pcm) / OUT_RATE)

    def hear(self, sound_s: float) -> None:
        now = self.loop.now()
        if self.first_s is None:
            self.first_s = self.dry_s = now
            self.sounds.set()
        elif now > self.dry_s + 1e-9:
            self.holes_s.append(now - self.dry_s)
            self.dry_s = now
        self.dry_s += sound_s
        self.scope.sounding = self.stages.by_deadline
        if self.stages.by_deadline:
            self.stages.sim.loop.post_deadline(self.request_id, self.dry_s)


async def burst(loop: VirtualLoop, at_s: float, *, by_deadline: bool) -> list[list[Caller]]:
    """Eight callers are being spoken to; `at_s` after all have a sound twenty more come at once."""
    stages = Stages(loop, by_deadline)
    working = asyncio.create_task(stages.work())
    speaking = [Caller(stages, n, 60) for n in range(SPEAKING)]
    arriving: list[Caller] = []
    async with asyncio.TaskGroup() as group:
        for caller in speaking:
            group.create_task(caller.talk())
        await asyncio.gather(*(caller.sounds.wait() for caller in speaking))
        await asyncio.sleep(at_s)
        for n in range(ARRIVING):
            arriving.append(Caller(stages, SPEAKING + n, 12))
            group.create_task(arriving[-1].talk())
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    return [speaking, arriving]


def run(scene: Callable[[VirtualLoop], object]):
    loop = VirtualLoop()
    return run_virtual(scene(loop), loop)


@pytest.mark.parametrize("at_s", [0.0, 0.1, 0.3, 1.0])
def test_twenty_callers_in_one_step_make_no_hole_in_eight_replies(at_s: float) -> None:
    speaking, arriving = run(lambda loop: burst(loop, at_s, by_deadline=True))
    assert [hole for caller in speaking for hole in caller.holes_s] == []
    assert all(caller.first_s is not None for caller in arriving), "nobody is forgotten"
    assert [hole for caller in arriving for hole in caller.holes_s] == []


def test_first_clauses_before_all_others_make_holes_in_the_same_scene() -> None:
    """The scene is hard enough: where a first sound counts more than the next, the eight stop."""
    speaking, _ = run(lambda loop: burst(loop, 0.1, by_deadline=False))
    assert sum(len(caller.holes_s) for caller in speaking) >= SPEAKING // 2
