"""A caller's turns in virtual time, over a line that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from loadtest.callers.caller import Caller, CallLog, Habits
from loadtest.callers.clip import FRAME, RATE, Clip, Pcm
from loadtest.callers.ear import Ear
from loadtest.callers.line import LineError, Refused
from tests.support.virtual_loop import VirtualLoop, run_virtual

pytestmark = pytest.mark.unit

SPEECH = Clip("a", np.full(RATE, 9000, np.int16), last=RATE * 9 // 10, first=RATE // 10)


class Agent:
    """Hears the caller by level; answers `answer_s` after they stopped, for `reply_s`."""

    def __init__(
        self,
        answer_s: float | None = 0.5,
        reply_s: float = 1.0,
        *,
        stops_after_s: float | None = 0.3,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.lost = ""
        self.sent: list[float] = []
        self._answer_s = answer_s
        self._reply_s = reply_s
        self._stops_after_s = stops_after_s
        self._answer_at = self._onset = self._until = -1.0
        self._heard = False
        self._n = 0

    async def open(self, ear: Ear, hold_s: float) -> None:
        self.ear = ear
        self._pacer = asyncio.ensure_future(self._speak())

    async def send(self, frame: Pcm) -> None:
        now = asyncio.get_running_loop().time()
        self.sent.append(now)
        voiced = int(np.abs(frame).max()) > 1000
        if voiced and not self._heard:
            self._onset = now
        if self._heard and not voiced and self._answer_s is not None:
            self._answer_at = now - 0.1 + self._answer_s  # 0.1: the clip's unvoiced end
        self._heard = voiced

    async def close(self) -> None:
        self._pacer.cancel()

    async def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.02)
            now = loop.time()
            if 0 <= self._answer_at <= now:
                self._answer_at, self._until = -1.0, now + self._reply_s
                self._n += 1
                self._onset = -1.0
            cut = (
                self._stops_after_s is not None
                and self._onset >= 0
                and now >= self._onset + 0.1 + self._stops_after_s
            )
            if now < self._until and not cut:
                self.ear.play(np.full(FRAME, 9000, np.int16), now, str(self._n))


def call(agent: Agent, seconds: float = 10.0, **habits: object) -> CallLog:
    async def main() -> CallLog:
        now = asyncio.get_running_loop().time()
        made = Habits((SPEECH,), seed=1, until_s=now + seconds, **habits)  # type: ignore[arg-type]
        return await Caller(agent, made).run()

    return run_virtual(main(), VirtualLoop())


def test_a_turn_is_timed_from_its_last_voiced_sample_to_the_first_loud_one() -> None:
    log = call(Agent(answer_s=0.5))
    assert len(log.turns) >= 3
    for turn in log.turns:
        assert turn.v2v_s == pytest.approx(0.5, abs=0.06)  # frames of the line and of the agent
        assert (turn.stuck, turn.early, turn.cut_in) == (False, False, False)


def test_the_microphone_never_pauses() -> None:
    agent = Agent()
    log = call(agent)
    assert log.frames == len(agent.sent)
    assert max(np.diff(agent.sent)) == pytest.approx(0.02, abs=1e-6)


def test_a_turn_without_an_answer_counts_with_all_the_time_it_was_waited_for() -> None:
    log = call(Agent(answer_s=None), patience_s=4.0)
    assert all(t.stuck and t.v2v_s is None for t in log.turns)
    assert all(t.waited_s == pytest.approx(4.0, abs=0.05) for t in log.turns)


def test_the_last_turn_is_finished_after_the_end_and_none_begins_then() -> None:
    log = call(Agent(answer_s=3.0), seconds=2.0, patience_s=5.0)
    assert len(log.turns) == 1
    assert log.turns[0].v2v_s == pytest.approx(3.0, abs=0.06)


def test_cutting_in_is_timed_to_the_last_sound_of_what_was_cut() -> None:
    log = call(Agent(reply_s=6.0, stops_after_s=0.3), barge_in=1.0)
    cut = [t for t in log.turns if t.cut_in]
    assert cut
    for turn in cut:
        assert turn.stop_s == pytest.approx(0.3, abs=0.06)
        assert not turn.missed
        assert turn.v2v_s == pytest.approx(0.5, abs=0.06)


def test_an_agent_that_does_not_stop_is_missed_and_not_a_quick_answer() -> None:
    log = call(Agent(reply_s=30.0, stops_after_s=None), barge_in=1.0)
    missed = [t for t in log.turns if t.missed]
    assert missed
    assert all(t.v2v_s is None and t.stop_s is None for t in missed)


def test_an_answer_before_the_caller_has_finished_is_early_and_not_quick() -> None:
    class Eager(Agent):
        async def send(self, frame: Pcm) -> None:
            await super().send(frame)
            if self._onset >= 0 and self._heard:
                self._answer_at = self._onset + 0.5

    log = call(Eager(reply_s=2.0, stops_after_s=None))
    assert log.turns[0].early
    assert log.turns[0].v2v_s is None


def test_turns_are_counted_and_the_last_one_is_heard_out() -> None:
    log = call(Agent(reply_s=2.0), seconds=60.0, turns=2, barge_in=1.0)
    assert len(log.turns) == 2
    assert log.ear.stretches[-1].end_s - log.ear.stretches[-1].start_s == pytest.approx(
        2.0, abs=0.05
    )


def test_noise_expects_no_answer() -> None:
    agent = Agent(answer_s=None)
    log = call(agent, seconds=3.0, noise=np.full(RATE, 500, np.int16))
    assert not log.turns
    assert log.frames == pytest.approx(150, abs=2)


@pytest.mark.parametrize(
    ("error", "field"), [(Refused("all lines are busy"), "refused"), (LineError("gone"), "failed")]
)
def test_a_call_that_does_not_come_up_says_why(error: Exception, field: str) -> None:
    class Closed(Agent):
        async def open(self, ear: Ear, hold_s: float) -> None:
            raise error

        async def close(self) -> None:
            pass

    log = call(Closed())
    assert getattr(log, field) == str(error)
    assert log.up_s is None


def test_a_line_that_is_lost_ends_the_call_without_a_stuck_turn() -> None:
    class Falls(Agent):
        async def send(self, frame: Pcm) -> None:
            await super().send(frame)
            if len(self.sent) > 100:
                self.lost = "closed by the server"

    log = call(Falls(answer_s=None), seconds=30.0)
    assert log.lost == "closed by the server"
    assert not log.turns
    assert log.down_s is not None
    assert log.up_s is not None
    assert log.down_s - log.up_s < 3.0
