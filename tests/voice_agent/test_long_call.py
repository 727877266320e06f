"""A call of any length: the history is cut back between turns, and no turn waits for that.

That the engine's session computes a shortened history in idle time is tested in
test_early_words.py; here a stand-in is paid by the token, so that an hour takes a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import pytest

from engine.prefix import common_prefix
from engine.sampling import SamplingParams
from tests.support.fakes import FakeThinker, FakeThinking, Scene, say, silence
from voice_agent.context import Prompt
from voice_agent.events import TurnTraced
from voice_agent.scope import CancelScope
from voice_agent.think import Ahead
from voice_agent.types import IN_RATE, Pcm16

pytestmark = pytest.mark.unit

WORDS = (
    "tell",
    "me",
    "what",
    "is",
    "the",
    "weather",
    "today",
    "and",
    "more",
    "please",
    "now",
    "time",
)
ANSWER = "It is sunny in the north and a little windy in the south today."
SLOWEST = 1.5
"""Times the median: so long may a turn's answer take at most."""


class PayingThinker(FakeThinker):
    """A model that computes a token of a prompt in `token_ms`, ahead if it is told ahead; a token
    is a character. late: prompt tokens that were left when each reply was asked for."""

    def __init__(self, token_ms: float) -> None:
        super().__init__(lambda _: ANSWER, first_s=0.06, token_s=0.02)
        self._token_s = token_ms / 1000
        self._base_s = self.first_s
        self._ids: tuple[int, ...] = ()
        self._computed = 0
        self._since_s = 0.0
        self.late: list[int] = []
        self.computed_again = 0
        self.now = lambda: 0.0

    def _meanwhile(self) -> None:
        now = self.now()
        done = self._computed + int((now - self._since_s) / self._token_s)
        self._computed, self._since_s = min(len(self._ids), done), now

    def _follow(self, ids: Sequence[int]) -> int:
        """The tokens of `ids` that need not be computed."""
        self._meanwhile()
        keep = common_prefix(self._ids, ids)
        self.computed_again += max(0, self._computed - keep) > 400
        self._ids, self._computed = tuple(ids), min(self._computed, keep)
        return self._computed

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        before = len(self._ids)
        kept = self._follow(ids)
        return Ahead(max(0, len(ids) - kept), max(0, before - kept))

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> FakeThinking:
        late = len(prompt.ids) - self._follow(prompt.ids)
        self.late.append(late)
        self.first_s = self._base_s + late * self._token_s
        self._ids = (*prompt.ids, *map(ord, ANSWER))
        return super().think(
            prompt, sampling, call=call, tenant=tenant, deadline_s=deadline_s, scope=scope
        )


def asked(turn: int) -> str:
    """Ten words, another beginning each time: a history that was cut is no part of the old one."""
    step = (1, 5, 7, 11)[turn // 12 % 4]
    return " ".join(WORDS[(turn + k * step) % 12] for k in range(10))


def turns(n: int, gap_ms: int = 5200) -> list[Pcm16]:
    return [part for t in range(n) for part in (silence(300), say(asked(t)), silence(gap_ms))]


def waits_ms(scene: Scene) -> list[float]:
    """From each turn's last voiced sample to our first sound."""
    waits = [e.trace.voice_to_voice_ms for e in scene.of(TurnTraced)]
    assert all(w is not None for w in waits)
    return [float(w) for w in waits if w is not None]


def long_call(minutes: float, token_ms: float = 2.0) -> tuple[Scene, PayingThinker]:
    n = round(minutes * 60 * IN_RATE / sum(map(len, turns(1))))
    thinker = PayingThinker(token_ms)
    scene = Scene("", thinker=thinker, limits={"max_call_s": 7200})
    thinker.now = scene.loop.now
    scene.play(*turns(n))
    assert len(scene.of(TurnTraced)) == n
    return scene, thinker


def check(scene: Scene, thinker: PayingThinker, cuts: int) -> None:
    assert scene.call is not None
    assert thinker.computed_again >= cuts, "the history was cut back"
    assert scene.call.conversation.n_tokens <= 0.7 * scene.stack.max_prompt_tokens
    waits = waits_ms(scene)
    assert max(waits) <= SLOWEST * median(waits), (max(waits), median(waits))
    assert max(thinker.late) < 60, "a caller's sentence at most"


def test_five_minutes_of_a_model_that_is_paid_by_the_token() -> None:
    scene, thinker = long_call(5)
    check(scene, thinker, cuts=2)


@pytest.mark.slow
def test_an_hour() -> None:
    scene, thinker = long_call(60)
    check(scene, thinker, cuts=30)


def test_the_measure_sees_a_turn_that_waits_for_its_history() -> None:
    """Were a cut not made good in idle time, the next turn would tell."""
    thinker = PayingThinker(2.0)
    thinker.expect = lambda *_, **__: Ahead()  # type: ignore[method-assign]
    scene = Scene("", thinker=thinker)
    thinker.now = scene.loop.now
    scene.play(*turns(22))
    waits = waits_ms(scene)
    assert thinker.computed_again >= 1
    assert max(waits) > SLOWEST * median(waits)
