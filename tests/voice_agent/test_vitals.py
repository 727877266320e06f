"""A stage that died or hangs is found; one that waits, or was stopped with everything, is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from engine.thread import EngineThread
from voice_agent.clock import MonotonicClock
from voice_agent.errors import InternalError, UsageError
from voice_agent.scope import CancelScope
from voice_agent.tts.base import AudioPiece, Clause
from voice_agent.tts.service import VoiceService
from voice_agent.vitals import Sign, Vitals, signs, watched

pytestmark = pytest.mark.unit


def vitals(*looks: Sign, stuck_checks: int = 3) -> Vitals:
    left = iter(looks)
    return Vitals(lambda: iter([next(left)]), stuck_checks)


def test_an_ended_thread_is_named() -> None:
    watch = vitals(Sign("voice", True, False, 0), Sign("voice", False, False, 0))
    assert watch.check() == ""
    assert watch.check() == "the thread of the voice has ended"


def test_work_that_does_not_move_is_a_hang() -> None:
    watch = vitals(*[Sign("engine", True, True, 7)] * 5)
    found = [watch.check() for _ in range(5)]
    assert found[:3] == ["", "", ""]
    assert found[3] == "the engine has work and has finished nothing for 3 s"


def test_a_stage_that_moves_or_has_nothing_to_do_is_well() -> None:
    moving = [Sign("engine", True, True, n) for n in range(9)]
    idle = [Sign("engine", True, False, 9)] * 9
    busy_again = [Sign("engine", True, True, 9)] * 2
    watch = vitals(*moving, *idle, *busy_again)
    assert {watch.check() for _ in range(20)} == {""}


async def test_a_start_that_waits_for_a_dead_stage_fails() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    dies = vitals(Sign("voice", True, True, 0), Sign("voice", False, True, 0))
    with pytest.raises(InternalError, match=r"voice has ended while .* starting") as found:
        await watched(waits(), dies, look_s=0.001)
    assert found.value.code == "VA493"
    assert ended.is_set(), "nothing goes on behind it"


async def test_a_start_that_works_or_fails_by_itself_says_so() -> None:
    async def fails() -> None:
        raise UsageError("no such voice", code="VA114")

    with pytest.raises(UsageError, match="no such voice"):
        await watched(fails(), vitals())
    await watched(asyncio.sleep(0), vitals())


class DyingVoice:
    """Ends its thread in a way that no `except Exception` sees."""

    name, exact_times = "dying", True

    def warm(self) -> None: ...

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        raise SystemExit


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_the_thread_of_a_voice_that_died_is_found() -> None:
    service = VoiceService(DyingVoice(), MonotonicClock())  # type: ignore[arg-type]
    stack = SimpleNamespace(recognizer=object(), engine=None, voices=service)
    watch = Vitals(lambda: signs(stack))  # type: ignore[arg-type]
    assert watch.check() == ""
    clause = Clause(0, "hello", (0, 5), ())
    service.speak(clause, speed=1.0, deadline_s=lambda: 0.0, scope=CancelScope("test"))
    async with asyncio.timeout(10):
        while service.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert watch.check() == "the thread of the voice has ended"
    await service.close()


class Hangs:
    """An engine loop whose step never comes back."""

    has_work = True

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()

    def wait(self, stop: Callable[[], bool]) -> None: ...
    def wake(self) -> None: ...
    def abort_all(self, now: float) -> None: ...

    def step(self, now: float) -> bool:
        self.inside.set()
        self.go_on.wait(20)
        return True


def test_an_engine_step_that_hangs_is_found() -> None:
    loop = Hangs()
    thread = EngineThread(loop, MonotonicClock())  # type: ignore[arg-type]
    thread.start()
    assert loop.inside.wait(10)
    pulse = lambda: (thread.alive, thread.busy, thread.rounds)  # noqa: E731
    stack = SimpleNamespace(recognizer=object(), engine=SimpleNamespace(pulse=pulse), voices=None)
    watch = Vitals(lambda: signs(stack), 3)  # type: ignore[arg-type]
    found = [watch.check() for _ in range(4)]
    assert found == ["", "", "", "the engine has work and has finished nothing for 3 s"]
    loop.go_on.set()
    thread.stop()
    assert thread.rounds > 0
