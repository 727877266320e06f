"""A cafe around a caller who says nothing: real detector, real recogniser, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import pytest

from tests.support.cafe import cafe
from tests.support.fakes import Scene
from voice_agent.events import EndReason, ReplyDone, TurnCommitted
from voice_agent.models import ModelStore
from voice_agent.stt.base import Transcript
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.types import PcmF32
from voice_agent.vad import VadService

pytestmark = pytest.mark.model

MODEL = "whisper-tiny.en"
PASS_S = 0.12


class VirtualWhisper:
    """The real model; what passes meanwhile is `PASS_S` of virtual time. One pass at a time."""

    sample_rate = WhisperRecognizer.sample_rate
    name = MODEL

    def __init__(self, real: WhisperRecognizer) -> None:
        self._real = real
        self._one = asyncio.Lock()
        self.passes = 0

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        async with self._one:
            self.passes += 1
            await asyncio.sleep(PASS_S)
            heard = self._real.recognize(pcm, prefix, final)
            return replace(heard, compute_s=PASS_S) if heard.compute_s else heard

    def warm(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def whisper() -> Iterator[WhisperRecognizer]:
    recognizer = WhisperRecognizer(ModelStore().path(MODEL))
    yield recognizer
    recognizer.close()


def sit_in(seconds: float, whisper: WhisperRecognizer, *, babble_db: float, seed: int) -> Scene:
    scene = Scene("I should not have said this.", limits={"idle_s": 600.0})
    scene.stack.vad = VadService(scene.loop)
    scene.stack.recognizer = VirtualWhisper(whisper)
    return scene.play(cafe(seconds, seed, babble_db=babble_db), tail_ms=0)


def check(scene: Scene) -> None:
    assert [e.text for e in scene.of(TurnCommitted) if e.text] == [], "nothing is answered"
    said = [e.text for e in scene.of(ReplyDone)]
    assert len(said) <= 2
    assert all("didn't catch" in text for text in said)
    assert scene.reason is EndReason.CALLER_HUNG_UP


@pytest.mark.slow
@pytest.mark.parametrize("babble_db", [-36.0, -30.0])
def test_five_minutes_of_a_cafe(whisper: WhisperRecognizer, babble_db: float) -> None:
    check(sit_in(300.0, whisper, babble_db=babble_db, seed=7))
