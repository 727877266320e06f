"""Stages that take time and no processor: what is left is the core's own Python."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator, Sequence

from engine.inputs import Row, Sampled
from loadtest.bench.capacity.engine import ModelledRunner
from loadtest.bench.capacity.stages import KnownVoice
from loadtest.bench.capacity.times import SttTimes
from voice_agent.stt.base import Transcript
from voice_agent.tts.base import AudioPiece, Clause
from voice_agent.types import IN_RATE, PcmF32

SAID = (
    "could you tell me please when the library is open on a saturday and whether I may bring my "
    "books back a week later than it says on the card because I shall be away until the end of "
    "the month and nobody else is at home"
)
WORDS_PER_S = 2.2


class SleepingRunner(ModelledRunner):
    """Its steps take their time without a processor, as a GPU's do."""

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        made = super().run(rows)
        time.sleep(self.take())
        return made


class SleepingVoice(KnownVoice):
    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        pieces = super().synthesize(clause, speed=speed, cancelled=cancelled)
        for i, piece in enumerate(pieces):
            time.sleep(self.times.work_s(len(clause.words), clause.index, i))
            yield piece


class SleepingRecognizer:
    """Implements `Recognizer`: as many words as the sound is long for."""

    name = "sleeping"
    sample_rate = IN_RATE

    def __init__(self, times: SttTimes) -> None:
        self._times = times

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        seconds = len(pcm) / IN_RATE
        words = tuple(SAID.split(" ")[: max(1, int(seconds * WORDS_PER_S))])
        spent = self._times.pass_s(seconds, len(words))
        await asyncio.sleep(spent)
        return Transcript(words, min(len(prefix), len(words)), seconds, spent, 0.0, final)

    def promote(self, key: Hashable) -> None: ...

    def warm(self) -> None: ...

    def close(self) -> None: ...


class SleepingSmartTurn:
    def __init__(self, ms: float) -> None:
        self._seconds = ms / 1000

    async def score(self, pcm: PcmF32) -> float | None:
        await asyncio.sleep(self._seconds)
        return 0.9
