"""Virtual time: real models whose answers come after the time that a stage was measured to take.

The models run at once, on the loop's thread; what passes meanwhile is the table's time, so that the
same sound gives the same events on any machine at any load. Stages wait for themselves (one
recogniser, one pass at a time) and not for each other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.sampling import SamplingParams
from voice_agent.clauses import ClauseSplitter
from voice_agent.context import Prompt
from voice_agent.scope import CancelScope
from voice_agent.smart_turn import SmartTurn
from voice_agent.stt.base import Transcript
from voice_agent.stt.jobs import Job, JobQueue
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.think import Ahead, Source, Thought, ThoughtUsage
from voice_agent.tts.base import AudioPiece, Clause, Voice, WordTime
from voice_agent.types import IN_RATE, OUT_RATE, Pcm16, PcmF32

from .ends import Ends
from .kept import Kept

WINDOW_S = 9.0  # of sound that the recogniser's smallest window holds


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What each stage takes, in ms, one call alone, rounded, on two cores of an AMD EPYC (Zen 4)
    without a GPU (`--measure-stages` takes this machine's). recognise: a pass
    over at most 9 s of sound, a further second of it, a word of its transcript. first_text: of
    a language model whose prompt is known but for the caller's words; token: each further one.
    first_piece: of a clause's voice, and each word of the clause; voice_s: a further second of
    sound."""

    recognise: float = 138.0
    recognise_s: float = 14.0
    recognise_word: float = 3.4
    smart_turn: float = 90.0
    first_text: float = 30.0
    token: float = 6.1
    first_piece: float = 36.0
    first_piece_word: float = 6.3
    voice_s: float = 86.0

    def recognise_ms(self, sound_s: float, words: int) -> float:
        return (
            self.recognise
            + self.recognise_s * max(0.0, sound_s - WINDOW_S)
            + self.recognise_word * words
        )

    def first_sound_ms(self, words: int) -> float:
        """From the submitted prompt to the first sound of a first clause of so many words."""
        spoken = self.token * TOKENS_PER_WORD * words
        return self.first_text + spoken + self.first_piece + self.first_piece_word * words


TOKENS_PER_WORD = 1.35  # of the shipped language models, in English


class Recall:
    """A recogniser's answers by what it was asked, and what each took for real (ms)."""

    def __init__(self, recognizer: WhisperRecognizer, times: StageTimes, kept: Kept) -> None:
        self._recognizer = recognizer
        self.times = times
        self._kept = kept
        self.real_ms: list[tuple[float, float]] = []  # (measured now, the table's)

    def pass_over(
        self, pcm: PcmF32, prefix: Sequence[str] = (), *, final: bool = False
    ) -> Transcript:
        """compute_s is the table's time."""
        key = Kept.key(self._recognizer.name, json.dumps([*prefix]), pcm)
        known = self._kept.get(key)
        if known is None:
            began = time.perf_counter()
            heard = self._recognizer.recognize(pcm, prefix, final)
            took_ms = (time.perf_counter() - began) * 1000
            known = [heard.words, heard.n_confirmed, heard.no_speech_prob, bool(heard.compute_s),
                     heard.logprob]  # fmt: skip
            self._kept.put(key, known)
        else:
            took_ms = 0.0
        words, n_confirmed, no_speech_prob, passed, logprob = known
        sound_s, cost_ms = len(pcm) / IN_RATE, 0.0
        if passed:  # else it was too quiet to be worth a pass
            cost_ms = self.times.recognise_ms(sound_s, len(words))
            if took_ms:
                self.real_ms.append((took_ms, cost_ms))
        return Transcript(
            tuple(words), n_confirmed, sound_s, cost_ms / 1000, no_speech_prob, final, logprob
        )


@dataclass(slots=True)
class _Asked:
    pcm: PcmF32
    prefix: tuple[str, ...]
    final: bool
    answer: asyncio.Future[Transcript]


class VirtualRecognizer:
    """Implements `Recognizer` over the real queue: one pass at a time, finals first."""

    name = "whisper-tiny.en"
    sample_rate = IN_RATE

    def __init__(self, recall: Recall) -> None:
        self._recall = recall
        self._queue: JobQueue[_Asked] = JobQueue(64)
        self._worker: asyncio.Task[None] | None = None
        self.passes = 0
        self.n_waiting = 0
        self.busy_s = 0.0

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        answer: asyncio.Future[Transcript] = asyncio.get_running_loop().create_future()

        def drop(error: BaseException) -> None:
            if not answer.done():
                answer.set_exception(error)

        asked = _Asked(pcm, tuple(prefix), final, answer)
        job = Job(asked, final, deadline_s, key, drop)
        self._queue.put(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())
        try:
            return await answer
        finally:
            self._queue.cancel(job)

    async def _work(self) -> None:
        while len(self._queue):
            job = self._queue.take()
            assert job is not None
            asked = job.payload
            heard = self._recall.pass_over(asked.pcm, asked.prefix, final=asked.final)
            await asyncio.sleep(heard.compute_s)
            self.passes += 1
            if not asked.answer.done():
                asked.answer.set_result(heard)

    def promote(self, key: Hashable) -> None:
        self._queue.promote(key)

    def warm(self) -> None: ...

    def close(self) -> None: ...


class VirtualSmartTurn(SmartTurn):
    """The model at once; its answer later."""

    def __init__(self, model: Path, times: StageTimes, kept: Kept) -> None:
        super().__init__(model)
        self._name = model.name
        self._times = times
        self._kept = kept

    def predict(self, pcm: PcmF32) -> float:
        key = Kept.key(self._name, "", pcm)
        known = self._kept.get(key)
        if known is None:
            known = super().predict(pcm)
            self._kept.put(key, known)
        return float(known)

    async def score(self, pcm: PcmF32) -> float | None:
        p = self.predict(pcm)
        await asyncio.sleep(self._times.smart_turn / 1000)
        return p


class _Reciting:
    def __init__(self, text: str, times: StageTimes, scope: CancelScope) -> None:
        self._words = [w + " " for w in text.split(" ")]
        self._words[-1] = self._words[-1].rstrip()
        self._times = times
        self._scope = scope
        self._n = 0

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        await asyncio.sleep(self._times.first_text / 1000)
        for i, word in enumerate(self._words):
            if self._scope.cancelled:
                return
            if i:
                await asyncio.sleep(self._times.token * TOKENS_PER_WORD / 1000)
            self._n += len(word)
            last = i == len(self._words) - 1
            yield Thought(word, tuple(map(ord, word)), "stop" if last else None)

    def set_deadline(self, deadline_s: float) -> None: ...

    def keep(self) -> None: ...

    @property
    def usage(self) -> ThoughtUsage:
        return ThoughtUsage(0, 0, self._n)

    @property
    def source(self) -> Source:
        return Source("recited")


class Reciter:
    """Implements `Thinker`: says one text after the other, a word at a time."""

    def __init__(
        self, texts: Callable[[], str], times: StageTimes, ends: Ends | None = None
    ) -> None:
        self._texts = texts
        self._times = times
        self._ends = ends

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
        **_: Any,
    ) -> _Reciting:
        return _Reciting(self._texts(), self._times, scope)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        return Ahead()

    async def end_of_utterance(
        self, prompt: Prompt, *, call: str, tenant: str, deadline_s: float
    ) -> float | None:
        """The real model at once; its answer after the time of a first token."""
        if self._ends is None:
            return None
        log_odds = self._ends.log_odds(prompt.messages)
        await asyncio.sleep(self._times.first_text / 1000)
        return log_odds

    def forget(self, call: str) -> None: ...

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None: ...

    async def close(self) -> None: ...


class Studio:
    """The agent's voice: every clause is made once and kept."""

    def __init__(self, voice: Voice, kept: Kept | None = None) -> None:
        self._voice = voice
        self._kept = kept or Kept()
        self._made: dict[tuple[str, int, float], list[AudioPiece]] = {}
        self._replies: dict[str, Pcm16] = {}

    def pieces(self, clause: Clause, speed: float = 1.0) -> list[AudioPiece]:
        key = (clause.spoken, clause.pause_ms, speed)
        if key not in self._made:
            self._made[key] = self._pieces(clause, speed)
        return self._made[key]

    def _pieces(self, clause: Clause, speed: float) -> list[AudioPiece]:
        asked = json.dumps([clause.spoken, clause.pause_ms, speed])
        key = Kept.key(self._voice.name, asked)
        known = self._kept.get(key)
        if known is None:
            made = list(self._voice.synthesize(clause, speed=speed, cancelled=lambda: False))
            for i, piece in enumerate(made):
                self._kept.put_pcm(Kept.key(self._voice.name, f"{asked} {i}"), piece.pcm)
            words = [[(w.index, w.start, w.end) for w in piece.words] for piece in made]
            self._kept.put(key, [[w, p.last] for w, p in zip(words, made, strict=True)])
            return made
        out = []
        for i, (words, last) in enumerate(known):
            pcm = self._kept.get_pcm(Kept.key(self._voice.name, f"{asked} {i}"))
            assert pcm is not None
            out.append(AudioPiece(pcm, tuple(WordTime(*w) for w in words), last))
        return out

    def clauses(self, text: str) -> list[Clause]:
        """A reply's clauses, cut as a call cuts them."""
        splitter = ClauseSplitter()
        return [*splitter.push(text), *splitter.finish()]

    def reply(self, text: str) -> Pcm16:
        """A whole reply as it is sent: int16 [n] at 24 kHz."""
        if text not in self._replies:
            said = [c for c in self.clauses(text) if c.words]
            self._replies[text] = np.concatenate([p.pcm for c in said for p in self.pieces(c)])
        return self._replies[text]


class VirtualSpeaker:
    """Implements `Speaker`: pieces as the measured voice would have made them."""

    def __init__(self, studio: Studio, times: StageTimes) -> None:
        self._studio = studio
        self._times = times

    async def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
        **_: Any,
    ) -> AsyncIterator[AudioPiece]:
        times = self._times
        wait_ms = times.first_piece + times.first_piece_word * len(clause.words)
        for piece in self._studio.pieces(clause, speed):
            await asyncio.sleep(wait_ms / 1000)
            if scope.cancelled:
                return
            yield piece
            wait_ms = times.voice_s * len(piece.pcm) / OUT_RATE
