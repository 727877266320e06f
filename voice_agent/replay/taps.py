"""A call's stages as they are, with everything they give written down."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from engine.sampling import SamplingParams
from voice_agent.agent import Call
from voice_agent.context import Prompt
from voice_agent.reply import Speaker
from voice_agent.scope import CancelScope
from voice_agent.smart_turn import SmartTurn
from voice_agent.stt.base import Demoter, Promoter, Recognizer, Transcript
from voice_agent.think import (
    Ahead,
    KnowsEnds,
    Source,
    Thinker,
    Thinking,
    Thought,
    ThoughtUsage,
)
from voice_agent.tools.base import Tool
from voice_agent.tts.base import AudioPiece, Clause
from voice_agent.types import Frame, PcmF32
from voice_agent.vad import VadService, VadStream, VadWindow

from .tape import Delta, EndTake, ScoreTake, SttTake, ThoughtTake, ToolTake, VoiceTake
from .taping import Taping, fault_of


class TapedVad:
    def __init__(self, inner: VadService, taping: Taping) -> None:
        self._inner, self._taping = inner, taping

    def open(self) -> TapedVadStream:
        return TapedVadStream(self._inner.open(), self._taping)


class TapedVadStream:
    def __init__(self, inner: VadStream, taping: Taping) -> None:
        self._inner, self._taping = inner, taping

    async def push(self, frame: Frame) -> list[VadWindow]:
        windows = await self._inner.push(frame)
        if not self._taping.full:
            self._taping.tape.vad += [(self._taping.now(), window.prob) for window in windows]
        return windows

    def close(self) -> None:
        self._inner.close()


class TapedSmartTurn:
    def __init__(self, inner: SmartTurn, taping: Taping) -> None:
        self._inner, self._taping = inner, taping

    async def score(self, pcm: PcmF32) -> float | None:
        take = ScoreTake(self._taping.now(), self._taping.n_frames)
        take.p = await self._inner.score(pcm)
        take.done_s = self._taping.now()
        self._taping.keep(self._taping.tape.scores, take)
        return take.p


class TapedRecognizer:
    def __init__(self, inner: Recognizer, taping: Taping) -> None:
        self._inner, self._taping = inner, taping
        self.name, self.sample_rate = inner.name, inner.sample_rate

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        take = SttTake(self._taping.now(), self._taping.n_frames, len(pcm))
        heard: Transcript | None = None
        try:
            heard = await self._inner.transcribe(
                pcm, prefix=prefix, final=final, deadline_s=deadline_s, key=key
            )
            take.words, take.n_confirmed = heard.words, heard.n_confirmed
            take.no_speech_prob, take.logprob = heard.no_speech_prob, heard.logprob
        except Exception as error:  # a pass that was cancelled answered nothing and is not kept
            take.error = fault_of(error)
            raise
        finally:
            take.done_s = self._taping.now()
            if heard is not None or take.error:
                self._taping.keep(self._taping.tape.stt, take)
        return heard

    def promote(self, key: Hashable) -> None:
        if isinstance(self._inner, Promoter):
            self._inner.promote(key)

    def demote(self, key: Hashable) -> None:
        if isinstance(self._inner, Demoter):
            self._inner.demote(key)

    def warm(self) -> None:
        self._inner.warm()

    def close(self) -> None:
        """Its owner closes it."""


class TapedThinker:
    def __init__(self, inner: Thinker, taping: Taping) -> None:
        self._inner, self._taping = inner, taping

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> TapedThinking:
        take = ThoughtTake(self._taping.now(), prompt.messages[-1][1])
        self._taping.keep(self._taping.tape.thoughts, take)
        thinking = self._inner.think(
            prompt, sampling, call=call, tenant=tenant, deadline_s=deadline_s, scope=scope
        )
        return TapedThinking(thinking, take, self._taping)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        ahead = self._inner.expect(ids, call=call, tenant=tenant)
        self._taping.keep(self._taping.tape.ahead, (ahead.given, ahead.taken_back))
        return ahead

    async def end_of_utterance(
        self, prompt: Prompt, *, call: str, tenant: str, deadline_s: float
    ) -> float | None:
        if not isinstance(self._inner, KnowsEnds):
            return None
        take = EndTake(self._taping.now(), self._taping.n_frames)
        take.log_odds = await self._inner.end_of_utterance(
            prompt, call=call, tenant=tenant, deadline_s=deadline_s
        )
        take.done_s = self._taping.now()
        self._taping.keep(self._taping.tape.ends, take)
        return take.log_odds

    def forget(self, call: str) -> None:
        self._inner.forget(call)

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None:
        await self._inner.prepare(prefix, agent=agent, tenant=tenant)

    async def close(self) -> None:
        """Its owner closes it."""


class TapedThinking:
    def __init__(self, inner: Thinking, take: ThoughtTake, taping: Taping) -> None:
        self._inner, self._take, self._taping = inner, take, taping

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        take = self._take
        try:
            async with aclosing(self._inner.__aiter__()) as thoughts:
                async for t in thoughts:
                    at = self._taping.now()
                    take.deltas.append(Delta(at, t.text, len(t.token_ids), t.finish, t.fresh))
                    yield t
        except Exception as error:
            take.error = fault_of(error)
            raise
        finally:
            used, source = self._inner.usage, self._inner.source
            take.prompt_tokens, take.cached_tokens = used.prompt_tokens, used.cached_tokens
            take.output_tokens = used.output_tokens
            take.backend, take.fallback = source.backend, source.fallback
            take.done_s = self._taping.now()

    def set_deadline(self, deadline_s: float) -> None:
        self._inner.set_deadline(deadline_s)

    def keep(self) -> None:
        self._inner.keep()

    @property
    def usage(self) -> ThoughtUsage:
        return self._inner.usage

    @property
    def source(self) -> Source:
        return self._inner.source


class TapedSpeaker:
    def __init__(self, inner: Speaker, taping: Taping) -> None:
        self._inner, self._taping = inner, taping

    async def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]:
        take = VoiceTake(self._taping.now(), clause.spoken, speed)
        self._taping.keep(self._taping.tape.voice, take)
        stream = self._inner.speak(clause, speed=speed, deadline_s=deadline_s, scope=scope)
        try:
            async with aclosing(cast(AsyncGenerator[AudioPiece], stream)) as pieces:
                async for piece in pieces:
                    take.pieces.append(self._taping.piece(piece))
                    yield piece
        except Exception as error:
            take.error = fault_of(error)
            raise
        finally:
            take.done_s = self._taping.now()


def taped_tool(tool: Tool, taping: Taping) -> Tool:
    async def run(arguments: dict[str, Any], call: Call) -> str | None:
        take = ToolTake(taping.now(), tool.name)
        taping.keep(taping.tape.tools, take)
        try:
            take.result = await tool.run(arguments, call)
        except Exception as error:
            take.error = fault_of(error)
            raise
        finally:
            take.done_s = taping.now()
        return take.result

    return replace(tool, run=run)
