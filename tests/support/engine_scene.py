"""A call in virtual time around a real engine: the steps are made between the frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.client import Engine
from engine.config import EngineConfig
from engine.inputs import Row, Sampled
from engine.request import Request
from engine.sampling import SamplingParams
from tests.engine.fakes import HashRunner, expected
from tests.engine.late import Late
from voice_agent.agent import Call
from voice_agent.context import Chat, Decoder, Prompt
from voice_agent.think import Ahead, EngineThinker
from voice_agent.types import Pcm16

from .fakes import FakeChat, Scene

STEP_S = 0.01


class ScriptRunner(HashRunner):
    """Answers the last user message of a prompt in `FakeChat`'s form with `reply`, then ends it.

    Keys and values are those of the hash model, and every row is held to them: a wrong or stale
    block under a row that samples is an AssertionError.
    """

    def __init__(self, reply: Callable[[str], str], n_blocks: int) -> None:
        super().__init__(n_blocks, block_size=4, max_model_len=4096)
        self._reply = reply

    def _row(self, row: Row) -> Sampled | None:
        sampled = super()._row(row)
        if sampled is None or row.sample is None:
            return None
        at = row.sample.n_prompt
        known = [*row.sample.history[: row.start], *row.token_ids]
        assert [sampled.token] == expected(known, 1)
        user = at - 1 - known[:at][::-1].index(FakeChat.USER)
        asked = "".join(chr(i) for i in known[user + 1 : at] if i < FakeChat.SYSTEM)
        answer = [*map(ord, self._reply(asked)), FakeChat.CLOSE]
        return Sampled(answer[min(row.sample.position - at, len(answer) - 1)])


class Letters:
    """A token is a character."""

    stopped = False

    def push(self, token: int) -> str:
        return chr(token)

    def finish(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Step:
    """at_s: of the scene's clock. n_tokens: computed, all requests together. n_chosen: of the
    rows, those that chose a token."""

    at_s: float
    n_tokens: int
    n_chosen: int


class EngineScene(Scene):
    """`make(clock)`: an engine that is not started. deaf: early words are ignored. min_tokens: of
    every reply, so that there is something to interrupt."""

    def __init__(
        self,
        make: Callable[[Scene], Engine],
        *,
        chat: Chat | None = None,
        tokenizer: Decoder | None = None,
        deaf: bool = False,
        min_tokens: int = 0,
        **agent: object,
    ) -> None:
        super().__init__("", chat=chat, tokenizer=tokenizer, **agent)
        self.engine = make(self)
        self.brain = EngineThinker(self.engine)
        if deaf:
            self.brain.expect = lambda *_, **__: Ahead()  # type: ignore[method-assign]
        self.stack.thinker = self.brain
        self.steps: list[Step] = []
        self.prompts: list[tuple[int, ...]] = []
        self.each_step: Callable[[], None] = lambda: None
        self._min_tokens = min_tokens
        self._think = self.brain.think
        self.brain.think = self._asked  # type: ignore[method-assign]
        self._runner = getattr(self.engine._runner, "inner", self.engine._runner)
        self._watched = self._runner.run
        self._runner.run = self._run

    def _asked(self, prompt: Prompt, sampling: SamplingParams, **named: Any) -> Any:
        self.prompts.append(prompt.ids)
        return self._think(prompt, replace(sampling, min_tokens=self._min_tokens), **named)

    def _run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        n_chosen = sum(row.sample is not None for row in rows)
        self.steps.append(Step(self.loop.now(), sum(len(r.token_ids) for r in rows), n_chosen))
        return self._watched(rows)

    async def _play(self, parts: Sequence[Pcm16 | Callable[[Call], object]]) -> None:
        pump = asyncio.create_task(self._pump())
        try:
            await super()._play(parts)
            await asyncio.sleep(5 * STEP_S)  # what was freed last
        finally:
            pump.cancel()
            self._runner.run = self._watched

    async def _pump(self) -> None:
        while True:
            self.engine._loop.step(self.loop.now())
            self.engine._loop.check()
            self.each_step()
            await asyncio.sleep(STEP_S)

    @property
    def in_use(self) -> int:
        """Blocks that hold anything."""
        return self.engine._kv.pool.n_total - self.engine._kv.pool.n_free

    @property
    def context(self) -> list[int]:
        """The session's, while the call lives."""
        assert self.call is not None
        return self.brain._sessions[self.call.id].tokens

    def computed(self, from_s: float, to_s: float) -> int:
        """Tokens of the steps from one time to another, both included."""
        return sum(s.n_tokens for s in self.steps if from_s <= s.at_s <= to_s)


def scripted(
    reply: Callable[[str], str] | str, *, overlap: bool = False, **scene: object
) -> EngineScene:
    """A scene whose model answers with `reply`, one character a step; overlap: as on a device."""
    answer = reply if callable(reply) else lambda _: str(reply)

    def make(scene: Scene) -> Engine:
        runner = ScriptRunner(answer, n_blocks=1200)
        return Engine(
            EngineConfig(Path("script"), block_size=4, max_model_len=4096),
            Late(runner) if overlap else runner,
            tokenizer=None,  # type: ignore[arg-type]
            chat=None,  # type: ignore[arg-type]
            make_text=_letters,
            eos_ids=frozenset({FakeChat.CLOSE}),
            n_vocab=FakeChat.CLOSE + 1,
            clock=scene.loop,
        )

    return EngineScene(make, **scene)  # type: ignore[arg-type]


def _letters(request: Request) -> Letters:
    return Letters()
