"""Scripted stages for unit tests of the conversation, in virtual time. Never used end to end.

Sound is a code here: a run of samples at level 1000 * k is word k of `VOCABULARY`, spoken for as
long as the run lasts; level 400 is voice without words (a cough). The fake detector hears any level
from 300 on as voice, and the fake recogniser reads the words back, so that timing, revisions and
cuts behave as they do with real speech.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.sampling import SamplingParams
from voice_agent.agent import Call
from voice_agent.agent_file import AgentFile, AgentShelf
from voice_agent.context import Chat, Declaration, Decoder, Prompt
from voice_agent.errors import InternalError
from voice_agent.events import EndReason, Event
from voice_agent.playout import Tick
from voice_agent.scope import CancelScope
from voice_agent.stack import Stack
from voice_agent.stt.base import Transcript
from voice_agent.think import Ahead, Source, Thinker, Thought, ThoughtUsage
from voice_agent.tts.base import AudioPiece, Clause, WordTime
from voice_agent.types import FRAME_MS, IN_FRAME, IN_RATE, OUT_RATE, Frame, Pcm16, PcmF32
from voice_agent.vad import VadService

from .virtual_loop import VirtualLoop

VOCABULARY = (
    "",
    "hello",
    "what",
    "is",
    "the",
    "time",
    "stop",
    "please",
    "mm-hm",
    "tell",
    "me",
    "more",
    "and",
    "weather",
    "today",
    "now",
)
COUGH = 400
WORD_MS = 240
WORD_OUT = OUT_RATE * 200 // 1000


def say(text: str, *, gap_ms: int = 0) -> Pcm16:
    """The sound of known words, int16 at 16 kHz."""
    parts: list[Pcm16] = []
    for word in text.split():
        level = 1000 * VOCABULARY.index(word)
        parts.append(np.full(IN_RATE * WORD_MS // 1000, level, np.int16))
        parts.append(np.full(IN_RATE * (gap_ms or 32) // 1000, COUGH, np.int16))
    return np.concatenate(parts)


def silence(ms: int) -> Pcm16:
    return np.zeros(IN_RATE * ms // 1000, np.int16)


def tool_call(name: str, arguments: str = "{}") -> str:
    """A call as a model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def cough(ms: int) -> Pcm16:
    return np.full(IN_RATE * ms // 1000, COUGH, np.int16)


class FakeVad:
    """Stands for SileroVad: loudness is voice."""

    def score(
        self, windows: NDArray[np.float32], states: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        loud = np.abs(windows[:, 64:]).mean(axis=1) * 32768 >= 300
        return np.where(loud, 0.99, 0.01).astype(np.float32), states


class FakeRecognizer:
    name = "fake"
    sample_rate = IN_RATE

    def __init__(self, delay_s: float = 0.08) -> None:
        self.delay_s = delay_s
        self.passes = 0
        self.fail = False

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        self.passes += 1
        await asyncio.sleep(self.delay_s)
        if self.fail:
            raise InternalError("the fake recogniser was told to fail", code="VA311")
        levels = np.rint(np.abs(pcm) * 32.768).astype(int)
        edges = np.flatnonzero(np.diff(levels)) + 1
        words: list[str] = []
        for run in np.split(levels, edges):
            k = int(run[0]) if len(run) else 0
            exact = len(run) >= IN_RATE * (WORD_MS - 40) // 1000
            if exact and 0 < k < len(VOCABULARY):
                words.append(VOCABULARY[k])
        return Transcript(tuple(words), 0, len(pcm) / IN_RATE, self.delay_s)

    def promote(self, key: Hashable) -> None:
        """No queue here: nothing to move to its front."""

    def warm(self) -> None: ...

    def close(self) -> None: ...


class FakeTokenizer:
    """One token per character; template tokens lie above every character."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i < 1_000_000)


class FakeChat:
    SYSTEM, USER, OPEN, CLOSE, TOOL = range(1_000_001, 1_000_006)

    def system(self, text: str, tools: Sequence[Declaration] = ()) -> list[int]:
        names = "".join(f"[{tool['function']['name']}]" for tool in tools)
        return [self.SYSTEM, *map(ord, text + names), self.CLOSE]

    def tool_calls(self, calls: Sequence[tuple[str, str]]) -> list[int]:
        return [ord(c) for call in calls for c in tool_call(*call)]

    def tool_results(self, results: Sequence[str]) -> list[int]:
        return [self.TOOL, *map(ord, "\n".join(results)), self.CLOSE]

    def user(self, text: str) -> list[int]:
        return [self.USER, *map(ord, text), self.CLOSE]

    def user_open(self, text: str) -> list[int]:
        return self.user(text)[:-1]

    def assistant_open(self) -> list[int]:
        return [self.OPEN]

    def assistant_close(self) -> list[int]:
        return [self.CLOSE]


def _flat(ids: Sequence[int]) -> str:
    chat = FakeChat
    marks = {
        chat.SYSTEM: "<s>", chat.USER: "<u>", chat.OPEN: "<a>", chat.CLOSE: "|", chat.TOOL: "<t>",
    }  # fmt: skip
    return "".join(marks.get(i) or chr(i) for i in ids)


class FakeThinking:
    def __init__(
        self, owner: FakeThinker, prompt: Prompt, text: str, scope: CancelScope, call: str
    ) -> None:
        self._in_call = "/" not in call  # else it has a cache of its own
        self._owner = owner
        self._text = text
        self._scope = scope
        self._prompt = prompt
        self._n = 0

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        self._owner.running += 1
        thinking = self._owner.thinking if self._in_call else []
        thinking.append(self._scope)
        try:
            await asyncio.sleep(self._owner.first_s)
            if self._owner.fail:
                raise InternalError("the fake model was told to fail", code="VA331")
            chunks = [self._text[i : i + 5] for i in range(0, len(self._text), 5)]
            for i, chunk in enumerate(chunks):
                if self._scope.cancelled:
                    return
                await asyncio.sleep(self._owner.token_s)
                self._n += len(chunk)
                yield Thought(
                    chunk,
                    tuple(map(ord, chunk)),
                    self._owner.finish if i == len(chunks) - 1 else None,
                )
        finally:
            self._owner.running -= 1
            thinking.remove(self._scope)

    def set_deadline(self, deadline_s: float) -> None:
        self._owner.deadlines.append((asyncio.get_running_loop().time(), deadline_s))

    @property
    def usage(self) -> ThoughtUsage:
        return ThoughtUsage(len(self._prompt.ids), 0, self._n)

    def keep(self) -> None: ...

    @property
    def source(self) -> Source:
        return Source("fake")


class FakeThinker:
    """Answers the last user message; `reply` decides what."""

    def __init__(
        self, reply: Callable[[str], str], first_s: float = 0.1, token_s: float = 0.01
    ) -> None:
        self.reply = reply
        self.first_s = first_s
        self.token_s = token_s
        self.running = 0
        self.thinking: list[CancelScope] = []
        self.prompts: list[str] = []
        self.expected: list[str] = []  # what may be computed ahead, each time it changed
        self.forgotten: list[str] = []
        self.deadlines: list[tuple[float, float]] = []  # when told, and what
        self.no_call: str | None = None  # the reply when it may call no tools
        self.fail = False
        self.finish = "stop"

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
        flat = _flat(prompt.ids)
        self.prompts.append(flat)
        last_user = re.split("<[ut]>", flat)[-1].split("|")[0]
        if self.no_call is not None and not prompt.may_call:
            return FakeThinking(self, prompt, self.no_call, scope, call)
        return FakeThinking(self, prompt, self.reply(last_user), scope, call)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        assert all(scope.cancelled for scope in self.thinking), "no prompt changes under a reply"
        flat = _flat(ids)
        if self.expected[-1:] != [flat]:
            self.expected.append(flat)
        return Ahead()

    def forget(self, call: str) -> None:
        self.forgotten.append(call)

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None: ...

    async def close(self) -> None: ...


class FakeSpeaker:
    """200 ms a word, after `delay_s`; one piece a word."""

    def __init__(self, delay_s: float = 0.06) -> None:
        self.delay_s = delay_s
        self.said: list[str] = []
        self.fail = False

    async def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]:
        await asyncio.sleep(self.delay_s)
        if self.fail:
            raise InternalError("the fake voice was told to fail", code="VA341")
        self.said.append(clause.spoken)
        for i in range(len(clause.words)):
            if scope.cancelled:
                return
            word = WordTime(i, i * WORD_OUT, (i + 1) * WORD_OUT)
            pcm = np.full(WORD_OUT, 3000, np.int16)
            yield AudioPiece(pcm, (word,), i == len(clause.words) - 1)


class FakeShelf(AgentShelf):
    def __init__(self, file: AgentFile) -> None:
        super().__init__(Path("."))
        self.file = file

    def get(self, name: str) -> tuple[AgentFile, None]:
        return self.file, None


class Scene:
    """A call in virtual time: `play` speaks to it, `events` and `frames` say what happened."""

    def __init__(
        self,
        reply: Callable[[str], str] | str,
        *,
        thinker: Thinker | None = None,
        chat: Chat | None = None,
        tokenizer: Decoder | None = None,
        **agent: object,
    ) -> None:
        self.loop = VirtualLoop()
        answer = reply if callable(reply) else lambda _: str(reply)
        self.recognizer = FakeRecognizer()
        self.thinker = FakeThinker(answer)
        self.speaker = FakeSpeaker()
        options: dict[str, Any] = {"name": "test", "instructions": "Be brief.", **agent}
        levels_are_words = {"quieter_db": 0.0}
        options["barge_in"] = levels_are_words | options.get("barge_in", {})
        options["turn_taking"] = {"fall_weight": 0.0} | options.get("turn_taking", {})
        self.file = AgentFile(**options)
        self.stack = Stack(
            clock=self.loop,
            vad=VadService(self.loop, FakeVad()),  # type: ignore[arg-type]
            smart_turn=None,
            recognizer=self.recognizer,
            thinker=thinker or self.thinker,
            chat=chat or FakeChat(),
            tokenizer=tokenizer or FakeTokenizer(),
            speakers={"fake": self.speaker},
            default_voice="fake",
            shelf=FakeShelf(self.file),
            names=["test"],
            max_context=4096,
        )
        self.events: list[tuple[float, Event]] = []
        self.frames: list[tuple[float, Tick]] = []
        self.call: Call | None = None
        self.reason: EndReason | None = None

    def on_event(self, event: Event) -> None:
        self.events.append((self.loop.now(), event))

    def of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [e for _, e in self.events if isinstance(e, kind)]

    def play(self, *parts: Pcm16 | Callable[[Call], object], tail_ms: int = 3000) -> Scene:
        """Speak sounds; run callables between them; then listen for `tail_ms`."""
        from .virtual_loop import run_virtual

        run_virtual(self._play([*parts, silence(tail_ms)]), self.loop)
        return self

    async def _play(self, parts: Sequence[Pcm16 | Callable[[Call], object]]) -> None:
        await self.stack.start()
        call = self.call = self.stack.open_call(None, self.on_event)
        life = asyncio.create_task(call.run())
        await asyncio.sleep(0)
        k, start = 0, self.loop.now()
        for part in parts:
            if not isinstance(part, np.ndarray):
                part(call)
                continue
            part = np.pad(part, (0, -len(part) % IN_FRAME))
            for i in range(0, len(part), IN_FRAME):
                k += 1
                await asyncio.sleep(start + k * FRAME_MS / 1000 - self.loop.now())
                if life.done():
                    break
                call.hear(Frame(part[i : i + IN_FRAME]))
                self.frames.append((self.loop.now(), call.tick()))
        call.hang_up(EndReason.CALLER_HUNG_UP)
        self.reason = await life
        await self.stack.close()

    @property
    def history(self) -> list[tuple[str, str]]:
        assert self.call is not None
        return [(m.role.value, m.text) for m in self.call.conversation.messages[1:]]
