"""One's own models in the shape that the conversation works with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import soxr

from engine.sampling import SamplingParams
from voice_agent.clock import Clock
from voice_agent.context import Prompt
from voice_agent.errors import InternalError
from voice_agent.remote_wire import wire_messages
from voice_agent.scope import CancelScope
from voice_agent.stt.base import Transcript
from voice_agent.think import Ahead, Source, Thought, ThoughtUsage
from voice_agent.tts.base import AudioPiece, Clause
from voice_agent.types import IN_RATE, OUT_RATE, PcmF32

from .protocols import Recognizer, Thinker, Voice

OWN = "own"


def name_of(part: object) -> str:
    return str(getattr(part, "name", type(part).__name__))


class OwnRecognizer:
    """No word is certain before the end: the text may change with every pass."""

    def __init__(self, inner: Recognizer, clock: Clock) -> None:
        self.name = name_of(inner)
        self.sample_rate = IN_RATE
        self._inner = inner
        self._clock = clock

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        began_s = self._clock.now()
        text = await self._inner.transcribe(pcm)
        took_s = self._clock.now() - began_s
        words = tuple(text.split())
        return Transcript(
            words, len(words) if final else 0, len(pcm) / IN_RATE, took_s, final=final
        )

    def warm(self) -> None:
        """Its own affair."""

    def close(self) -> None:
        """Its own affair."""


class OwnVoice:
    """Tells no word times: the service estimates them (`voice_agent.tts.estimate`)."""

    exact_times = False

    def __init__(self, inner: Voice) -> None:
        self.name = name_of(inner)
        self._inner = inner

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        """speed is left to the voice. Raises InternalError VA341 for a clause without sound."""
        resampler = soxr.ResampleStream(self._inner.sample_rate, OUT_RATE, 1, dtype="int16")
        n_samples = 0
        for piece in self._inner.speak(clause.spoken):
            if cancelled():
                return
            sound = resampler.resample_chunk(np.asarray(piece, np.int16))
            n_samples += len(sound)
            yield AudioPiece(sound, (), False)
        tail = resampler.resample_chunk(np.zeros(0, np.int16), last=True)
        if not n_samples + len(tail):
            raise InternalError(f"the voice {self.name!r} gave no sound", code="VA341")
        pause = np.zeros(clause.pause_ms * OUT_RATE // 1000, np.int16)
        yield AudioPiece(np.concatenate([tail, pause]), (), True)

    def warm(self) -> None:
        """Its own affair."""


class OwnThinking:
    def __init__(self, inner: Thinker, prompt: Prompt, scope: CancelScope) -> None:
        self._inner = inner
        self._prompt = prompt
        self._scope = scope
        self._n_pieces = 0

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        messages = wire_messages(self._prompt.messages, dict(self._prompt.uses))
        pieces = self._inner.reply(messages, [dict(tool) for tool in self._prompt.tools])
        try:
            async for text in pieces:
                if self._scope.cancelled:
                    return
                self._n_pieces += 1
                yield Thought(text, (), None)
            yield Thought("", (), "stop")
        finally:
            close: Any = getattr(pieces, "aclose", None)
            if close is not None:
                await close()

    def set_deadline(self, deadline_s: float) -> None:
        """Its own affair."""

    def keep(self) -> None:
        """Nothing else could take over."""

    @property
    def usage(self) -> ThoughtUsage:
        """Pieces of text stand for tokens."""
        return ThoughtUsage(0, 0, self._n_pieces)

    @property
    def source(self) -> Source:
        return Source(OWN)


class OwnThinker:
    def __init__(self, inner: Thinker) -> None:
        self.name = name_of(inner)
        self._inner = inner

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> OwnThinking:
        return OwnThinking(self._inner, prompt, scope)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        return Ahead()

    def forget(self, call: str) -> None:
        """Nothing is kept here."""

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None:
        """Its own affair."""

    async def close(self) -> None:
        """Its own affair."""
