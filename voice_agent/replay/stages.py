"""A call's stages in a replay: each gives what it gave then, when it gave it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from typing import Any

import numpy as np

from engine.sampling import SamplingParams
from voice_agent.agent import Call
from voice_agent.context import Prompt
from voice_agent.scope import CancelScope
from voice_agent.shedding import Shed
from voice_agent.stt.base import Transcript
from voice_agent.think import Ahead, Source, Thought, ThoughtUsage
from voice_agent.tools.base import Tool, ToolFailed
from voice_agent.tools.builtin import end_call
from voice_agent.tools.settings import ToolsSection
from voice_agent.tools.toolbox import Toolbox
from voice_agent.tts.base import AudioPiece, Clause, WordTime
from voice_agent.types import IN_FRAME, IN_RATE, OUT_RATE, Frame, PcmF32
from voice_agent.vad import VadWindow, Windower

from .answers import Answers, raised
from .tape import ThoughtTake

CUT_S = 0.5  # an answer that nobody waited for ends by itself this much later
SAME_FRAMES = 2  # of a question: a busy process asks it so much later
NEAR_FRAMES = 50  # an answer this far from a question is none to it
CHAR_S = 0.06  # a clause nobody spoke then: this long a character, in silence


class ThenVad:
    """Probabilities in the order they came, each when it came; one stream."""

    n_open = calls = 0
    busy_s = 0.0

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._windower = Windower()
        self._k = 0

    def open(self) -> ThenVad:
        return self

    async def push(self, frame: Frame) -> list[VadWindow]:
        answers, windows = self._answers, list[VadWindow]()
        for start, pcm, concealed in self._windower.push(frame):
            at_s, prob = answers.now(), 0.0
            if self._k < len(answers.tape.vad):
                at_s, prob = answers.tape.vad[self._k]
            self._k += 1
            if at_s > answers.now():
                await answers.until(at_s)
            power = float(np.dot(pcm, pcm)) / len(pcm)
            windows.append(VadWindow(prob, start, start + len(pcm), concealed, power))
        return windows

    def close(self) -> None: ...


class ThenSmartTurn:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def score(self, pcm: PcmF32) -> float | None:
        answers, asked = self._answers, self._answers.now()
        frame = answers.n_frames
        take = answers.pick(
            answers.tape.scores,
            lambda t: _same(t.frame, frame),
            lambda t: _reach(abs(t.frame - frame)),
        )
        if take is None:
            return None
        await answers.due(asked, take.asked_s, take.done_s)
        return take.p


class ThenRecognizer:
    name = "replay"
    sample_rate = IN_RATE

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        answers, asked, frame, n = (
            self._answers,
            self._answers.now(),
            self._answers.n_frames,
            len(pcm),
        )
        take = answers.pick(
            answers.tape.stt,
            lambda t: _same(t.frame, frame) and abs(t.samples - n) <= SAME_FRAMES * IN_FRAME,
            lambda t: _reach(abs(t.frame - frame)),
        )
        if take is None:
            return Transcript((), 0, n / IN_RATE, 0.0, final=final)
        await answers.due(asked, take.asked_s, take.done_s)
        if take.error:
            raise raised(take.error)
        return Transcript(
            take.words, take.n_confirmed, n / IN_RATE, 0.0, take.no_speech_prob, final,
            take.logprob,
        )  # fmt: skip

    def promote(self, key: Hashable) -> None:
        """Passes end when they ended."""

    def warm(self) -> None: ...

    def close(self) -> None: ...


class ThenLoad:
    """How much early work there was room for then."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    @property
    def shed(self) -> Shed:
        past = [level for at_s, level in self._answers.tape.shed if at_s <= self._answers.now()]
        return Shed(past[-1]) if past else Shed.NOTHING


class ThenThinker:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._n_ahead = 0

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> ThenThinking:
        answers, asked, words = self._answers, self._answers.now(), prompt.messages[-1][1]
        take = answers.pick(
            answers.tape.thoughts,
            lambda t: t.asked == words,
            lambda t: abs(t.asked_s - asked),
        )
        return ThenThinking(answers, take, asked, scope)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        taken, self._n_ahead = self._n_ahead, self._n_ahead + 1
        ahead = self._answers.tape.ahead
        return Ahead(*ahead[taken]) if taken < len(ahead) else Ahead()

    async def end_of_utterance(
        self, prompt: Prompt, *, call: str, tenant: str, deadline_s: float
    ) -> float | None:
        answers, asked, frame = self._answers, self._answers.now(), self._answers.n_frames
        if not answers.tape.ends:  # the model of then was not asked
            return None
        take = answers.pick(
            answers.tape.ends,
            lambda t: _same(t.frame, frame),
            lambda t: _reach(abs(t.frame - frame)),
        )
        if take is None:
            return None
        await answers.due(asked, take.asked_s, take.done_s)
        return take.log_odds

    def forget(self, call: str) -> None: ...

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None: ...

    async def close(self) -> None: ...


class ThenThinking:
    def __init__(
        self, answers: Answers, take: ThoughtTake | None, asked_s: float, scope: CancelScope
    ) -> None:
        self._answers, self._take, self._asked_s, self._scope = answers, take, asked_s, scope
        self._n = 0

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        """One id a character: the history is cut at the character heard."""
        take, answers = self._take, self._answers
        if take is None:
            return
        for delta in take.deltas:
            await answers.due(self._asked_s, take.asked_s, delta.at_s)
            if self._scope.cancelled:
                return
            self._n += delta.tokens
            ids = tuple(map(ord, delta.text))
            yield Thought(delta.text, ids, delta.finish, delta.fresh)
        if take.error:
            await answers.due(self._asked_s, take.asked_s, take.done_s)
            raise raised(take.error)
        if not take.deltas or take.deltas[-1].finish is None:  # it was cut short then
            await answers.due(self._asked_s, take.asked_s, take.done_s + CUT_S)

    def set_deadline(self, deadline_s: float) -> None: ...

    def keep(self) -> None: ...

    @property
    def usage(self) -> ThoughtUsage:
        take = self._take
        return (
            ThoughtUsage(take.prompt_tokens, take.cached_tokens, self._n)
            if take
            else (ThoughtUsage(0, 0, 0))
        )

    @property
    def source(self) -> Source:
        return Source(self._take.backend, self._take.fallback) if self._take else Source("")


class ThenSpeaker:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]:
        answers, asked, said = self._answers, self._answers.now(), clause.spoken
        take = answers.pick(answers.tape.voice, lambda t: t.spoken == said, lambda t: float("inf"))
        if take is None:
            yield _unspoken(clause)
            return
        last = False
        for piece in take.pieces:
            await answers.due(asked, take.asked_s, piece.at_s)
            if scope.cancelled:
                return
            last = piece.last
            pcm = answers.recorded.sound[piece.start : piece.start + piece.n]
            yield AudioPiece(pcm, tuple(WordTime(*word) for word in piece.words), last)
        if take.error:
            raise raised(take.error)
        if not last:  # it was cut short then; whoever listens on hears silence
            await answers.due(asked, take.asked_s, take.done_s + CUT_S)
            yield _unspoken(clause)


def _unspoken(clause: Clause) -> AudioPiece:
    """Silence about as long as the words."""
    ends = [0]
    for word in clause.words:
        ends.append(ends[-1] + round(len(word.text) * CHAR_S * OUT_RATE))
    times = [WordTime(i, ends[i], ends[i + 1]) for i in range(len(clause.words))]
    return AudioPiece(np.zeros(ends[-1], np.int16), tuple(times), True)


class ThenToolbox(Toolbox):
    """The tools of then, giving the results of then; what ends the call does so."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self._tools = tuple(_tool(answers, told) for told in answers.tape.head.tools)

    def ready(self, section: ToolsSection) -> tuple[Tool, ...]:
        return self._tools

    async def complete(self, section: ToolsSection) -> tuple[Tool, ...]:
        return self._tools


def _tool(answers: Answers, told: dict[str, Any]) -> Tool:
    if told["name"] == "end_call":
        return end_call()

    async def run(arguments: dict[str, Any], call: Call) -> str | None:
        asked = answers.now()
        take = answers.pick(
            answers.tape.tools,
            lambda t: t.name == told["name"],
            lambda t: float("inf"),
        )
        if take is None:
            raise ToolFailed("it was not called then")
        await answers.due(asked, take.asked_s, take.done_s)
        if take.error:
            raise raised(take.error)
        return take.result

    return Tool(run=run, **told)


def _same(then: int, now: int) -> bool:
    return abs(then - now) <= SAME_FRAMES


def _reach(frames: int) -> float:
    return float(frames) if frames <= NEAR_FRAMES else float("inf")
