"""One utterance against a scripted recogniser: reuse, order, bounds, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from voice_agent.errors import CapacityError, InternalError
from voice_agent.stt.base import Transcript
from voice_agent.stt.jobs import SupersededError
from voice_agent.stt.streaming import CUT_S, MAX_BUFFER_S, Utterance
from voice_agent.types import IN_RATE, Pcm16, PcmF32

pytestmark = pytest.mark.unit

WORD = IN_RATE // 2


class ScriptedRecognizer:
    """Hears one word per half second: the value of its samples. Zero is silence."""

    name = "scripted"
    sample_rate = IN_RATE

    def __init__(self) -> None:
        self.calls: list[tuple[float, tuple[str, ...], bool]] = []
        self.promoted: list[Hashable] = []
        self.demoted: list[Hashable] = []
        self.gate: asyncio.Event | None = None
        self.errors: list[BaseException] = []

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        self.calls.append((len(pcm) / IN_RATE, tuple(prefix), final))
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop()
        assert len(pcm) <= 30 * IN_RATE
        words: list[str] = []
        values = np.rint(pcm[::WORD] * 32768).astype(int)
        for value in values:
            if value:
                words.append(f"w{value}")
        return Transcript(tuple(words), len(prefix), len(pcm) / IN_RATE, 0.1)

    def promote(self, key: Hashable) -> None:
        self.promoted.append(key)

    def demote(self, key: Hashable) -> None:
        self.demoted.append(key)

    def warm(self) -> None: ...

    def close(self) -> None: ...


def say(*values: int) -> Pcm16:
    return np.repeat(np.array(values, np.int16), WORD)


def numbers(n: int, start: int = 1000) -> Pcm16:
    return say(*range(start, start + n))


@pytest.fixture
def recognizer() -> ScriptedRecognizer:
    return ScriptedRecognizer()


@pytest.fixture
def utterance(recognizer: ScriptedRecognizer) -> Utterance:
    return Utterance(recognizer)


async def test_words_are_confirmed_and_forced(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    utterance.append(numbers(4), voiced=True)
    first = await utterance.transcribe()
    assert first.text == "w1000 w1001 w1002 w1003"
    assert first.n_confirmed == 0
    utterance.append(numbers(4, 1004), voiced=True)
    second = await utterance.transcribe()
    assert second.n_confirmed >= 4
    utterance.append(numbers(1, 1008), voiced=True)
    final = await utterance.transcribe(final=True)
    assert recognizer.calls[-1][1] == second.words[: second.n_confirmed]
    assert final.final
    assert final.n_confirmed == len(final.words) == 9
    assert final.confirmed == final.text


async def test_the_final_reuses_the_pause(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    utterance.append(numbers(4), voiced=True)
    utterance.append(say(0), voiced=False)
    await utterance.transcribe(pause=True)
    assert recognizer.calls[-1][2]  # ordered like a final
    utterance.append(say(0), voiced=False)
    final = await utterance.transcribe(final=True)
    assert len(recognizer.calls) == 1
    assert utterance.reused == 1
    assert final.text == "w1000 w1001 w1002 w1003"
    utterance.append(say(2000), voiced=True)
    assert (await utterance.transcribe(final=True)).words[-1] == "w2000"
    assert len(recognizer.calls) == 2


async def test_a_final_joins_the_pause_pass_under_way(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    recognizer.gate = asyncio.Event()
    utterance.append(numbers(3), voiced=True)
    partial = asyncio.ensure_future(utterance.transcribe())
    await asyncio.sleep(0)
    final = asyncio.ensure_future(utterance.transcribe(final=True))
    await asyncio.sleep(0)
    assert recognizer.promoted == [utterance]
    recognizer.gate.set()
    assert (await final).text == (await partial).text == "w1000 w1001 w1002"
    assert len(recognizer.calls) == 1


async def test_a_cancelled_partial_does_not_take_the_final_with_it(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    recognizer.gate = asyncio.Event()
    utterance.append(numbers(3), voiced=True)
    partial = asyncio.ensure_future(utterance.transcribe())
    await asyncio.sleep(0)
    final = asyncio.ensure_future(utterance.transcribe(final=True))
    await asyncio.sleep(0)
    partial.cancel()
    recognizer.gate.set()
    assert (await final).text == "w1000 w1001 w1002"
    with pytest.raises(asyncio.CancelledError):
        await partial


async def test_loudness_stands_in_for_a_missing_opinion(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    utterance.append(numbers(3))
    await utterance.transcribe(pause=True)
    utterance.append(say(5))  # hiss far below the voice
    await utterance.transcribe(final=True)
    assert len(recognizer.calls) == 1


async def test_a_replaced_or_refused_partial_answers_with_what_is_known(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    utterance.append(numbers(3), voiced=True)
    known = await utterance.transcribe()
    for error in (SupersededError(), CapacityError("full")):
        utterance.append(numbers(1, 3000), voiced=True)
        recognizer.errors = [error]
        assert (await utterance.transcribe()).words == known.words
    recognizer.errors = [CapacityError("full")]
    with pytest.raises(CapacityError):
        await utterance.transcribe(final=True)
    recognizer.errors = [InternalError("broken")]
    with pytest.raises(InternalError):
        await utterance.transcribe()
    assert len((await utterance.transcribe(final=True)).words) == 5


async def test_reset_ignores_passes_under_way(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    recognizer.gate = asyncio.Event()
    utterance.append(numbers(3), voiced=True)
    old = asyncio.ensure_future(utterance.transcribe(final=True))
    await asyncio.sleep(0)
    utterance.reset()
    recognizer.gate.set()
    assert (await old).words == ()
    assert utterance.n_samples == 0
    utterance.append(numbers(1, 7000), voiced=True)
    assert (await utterance.transcribe(final=True)).text == "w7000"


async def test_a_monologue_with_pauses_costs_no_more_than_a_sentence(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    expected = []
    for sentence in range(20):
        start = 1000 + 100 * sentence
        utterance.append(numbers(14, start), voiced=True)
        await utterance.transcribe()
        utterance.append(say(0), voiced=False)
        result = await utterance.transcribe(pause=True)
        expected += [f"w{start + i}" for i in range(14)]
        assert list(result.words) == expected
        assert utterance.held_samples <= (CUT_S + 8) * IN_RATE
    final = await utterance.transcribe(final=True)
    assert list(final.words) == expected
    assert max(seconds for seconds, _, _ in recognizer.calls) <= CUT_S


async def test_a_monologue_without_a_pause_is_cut_at_its_quietest_place(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    confirmed: tuple[str, ...] = ()
    for i in range(40):
        utterance.append(numbers(3, 1000 + 3 * i), voiced=True)
        result = await utterance.transcribe()
        assert result.words[: len(confirmed)] == confirmed
        confirmed = result.words[: result.n_confirmed]
        assert utterance.held_samples <= (CUT_S + 2) * IN_RATE
    final = await utterance.transcribe(final=True)
    assert set(final.words) == {f"w{1000 + i}" for i in range(120)}
    assert len(final.words) <= 120 + 10  # a word cut in two may be heard on both sides


async def test_ten_minutes_of_silence_or_noise_stay_small(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    second = np.zeros(IN_RATE, np.int16)
    for _ in range(600):
        utterance.append(second)
    assert utterance.held_samples <= IN_RATE
    assert utterance.n_samples == 600 * IN_RATE
    assert (await utterance.transcribe(final=True)).words == ()
    utterance.reset()
    for _ in range(600):  # noise that nobody transcribes
        utterance.append(second, voiced=True)
    assert utterance.held_samples <= MAX_BUFFER_S * IN_RATE
    assert len(utterance._buffer) <= MAX_BUFFER_S * IN_RATE
    assert utterance.dropped_samples == (600 - MAX_BUFFER_S) * IN_RATE
    utterance.reset()
    for _ in range(400):
        utterance.append(second, voiced=True)
        result = await utterance.transcribe()
    assert result.words == ()
    assert utterance.held_samples <= (CUT_S + 2) * IN_RATE


async def test_nothing_appended_is_nothing_said(utterance: Utterance) -> None:
    assert (await utterance.transcribe(final=True)).words == ()


async def test_a_pause_that_the_caller_speaks_past_is_no_final_any_more(
    utterance: Utterance, recognizer: ScriptedRecognizer
) -> None:
    """What waits for it is told so, and is not asked for again as a final once it is replaced."""
    recognizer.gate = asyncio.Event()
    utterance.append(numbers(3), voiced=True)
    utterance.append(say(0), voiced=False)
    pause = asyncio.ensure_future(utterance.transcribe(pause=True))
    await asyncio.sleep(0)
    utterance.go_on()
    assert recognizer.demoted == [utterance]
    recognizer.errors.append(SupersededError())
    recognizer.gate.set()
    assert (await pause).words == ()
    assert len(recognizer.calls) == 1
