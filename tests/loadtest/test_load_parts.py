"""What the load test's server has of its own: a scripted model, and stages that know no urgency."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from loadtest.parts import first_come_first_served
from loadtest.words import ScriptedThinker, instructions, words_in
from voice_agent.clock import ManualClock
from voice_agent.scope import CancelScope
from voice_agent.stt import jobs
from voice_agent.tts import service
from voice_agent.tts.base import AudioPiece, Clause, SpokenWord

pytestmark = pytest.mark.unit


class Silent:
    name = "silent"
    exact_times = True

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        yield from ()


def recognised() -> str:
    """The order in which a queue serves what came as a, b, c."""
    queue: jobs.JobQueue[str] = jobs.JobQueue(8)
    for name, final, deadline_s in (("a", False, 9.0), ("b", True, 5.0), ("c", True, 1.0)):
        queue.put(jobs.Job(name, final, deadline_s, name, lambda error: None))
    served = [queue.take() for _ in range(3)]
    return "".join(job.payload for job in served if job is not None)


def spoken() -> list[int]:
    """Likewise of clauses, by the place at which they came."""
    voice = service.VoiceService(Silent(), ManualClock(), workers=0)
    asked = [
        voice.speak(
            Clause(0, "hello", (0, 5), (SpokenWord("hello", (0, 5)),)),
            speed=1.0,
            deadline_s=partial(float, d),
            scope=CancelScope("test"),
        )
        for d in (9.0, 5.0, 7.0)
    ]
    return [asked.index(job) for job in iter(lambda: voice.take(wait=False), None)]


async def test_the_baseline_s_stages_serve_in_order_of_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert recognised() != "abc"
    assert spoken() == [1, 2, 0]
    for owner, name in ((jobs.JobQueue, "_pick"), (service.VoiceService, "_choose")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back after the test
    first_come_first_served()
    assert recognised() == "abc"
    assert spoken() == [0, 1, 2]


async def test_the_scripted_model_says_its_session_s_word() -> None:
    messages = [
        {"role": "system", "content": instructions("volcano", 2)},
        {"role": "user", "content": "my word is banana"},
    ]
    text = "".join([piece async for piece in ScriptedThinker().reply(messages, [])])
    assert words_in(text) == {"volcano"}
