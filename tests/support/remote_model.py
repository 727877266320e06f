"""What every remote language model has to do, whoever serves it: asked through our own client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.sampling import SamplingParams
from voice_agent.clock import MonotonicClock
from voice_agent.context import Prompt, Role
from voice_agent.llm_section import RemoteSection
from voice_agent.remote import RemoteThinker
from voice_agent.scope import CancelScope
from voice_agent.think import ThoughtUsage

PATIENT = {"connect_s": 10.0, "first_token_s": 30.0, "stall_s": 30.0}
"""A busy machine is slow; nothing here is about time."""
INSTRUCTIONS = "You are a friendly phone agent. Answer in one short sentence, without any lists. "


def section(base_url: str, model: str, **more: object) -> RemoteSection:
    return RemoteSection.model_validate({"base_url": base_url, "model": model, **PATIENT, **more})


@dataclass
class Said:
    text: str = ""
    n_pieces: int = 0
    finish: str | None = None
    usage: ThoughtUsage = field(default_factory=lambda: ThoughtUsage(0, 0, 0))


async def ask(
    thinker: RemoteThinker,
    *words: str,
    max_tokens: int = 24,
    cancel_after: int | None = None,
) -> Said:
    """words: the caller's and the agent's in turn. cancel_after: pieces of text."""
    roles = (Role.USER, Role.ASSISTANT)
    messages = [(roles[i % 2], text) for i, text in enumerate(words)]
    prompt = Prompt(((Role.SYSTEM, INSTRUCTIONS * 8), *messages), ())
    scope, said = CancelScope("reply"), Said()
    thinking = thinker.think(
        prompt, SamplingParams(max_tokens=max_tokens), call="c", tenant="t", deadline_s=0.0,
        scope=scope,
    )  # fmt: skip
    async with aclosing(thinking.__aiter__()) as thoughts:
        async for thought in thoughts:
            said.text += thought.text
            said.n_pieces += bool(thought.text)
            said.finish = thought.finish
            if said.n_pieces == cancel_after:
                scope.cancel()
    said.usage = thinking.usage
    return said


ENDLESS = {"extra": {"ignore_eos": True}}
LONG_REPLY = 1000
STOPPED = 300
"""A reply of LONG_REPLY tokens that was cancelled at its start ends well before this many."""


async def check_model(base_url: str, model: str, made: Callable[[], Awaitable[int]]) -> None:
    """Streams, counts, reuses the prefix of a turn before, and stops when nobody listens.

    made: waits until the server is idle and returns how many tokens it has made since it was last
    asked, or in its last reply.
    """
    thinker = RemoteThinker("far", section(base_url, model), MonotonicClock())
    endless = RemoteThinker("far", section(base_url, model, **ENDLESS), MonotonicClock())
    try:
        first = await ask(thinker, "What is the capital of France?")
        assert first.n_pieces > 1, "it streams"
        assert first.finish in ("stop", "length")
        assert first.usage.prompt_tokens > 100
        assert 0 < first.usage.output_tokens <= 24
        again = await ask(thinker, "What is the capital of France?", first.text, "And of Italy?")
        assert again.usage.cached_tokens > 100, "the second turn starts from the first one's cache"
        await made()
        cut = await ask(endless, "Tell me a story.", max_tokens=LONG_REPLY, cancel_after=3)
        assert (cut.n_pieces, cut.finish) == (3, None)
        assert await made() < STOPPED
        assert (await ask(thinker, "Say hello.")).text
    finally:
        await thinker.close()
        await endless.close()
