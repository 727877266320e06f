"""`voice-agent chat`: type with the agent; prompt and language model of a call, no sound."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing

from engine.sampling import SamplingParams
from voice_agent.agent_file import AgentFile, find_agent, load_agent
from voice_agent.brain import Brain, load_brain
from voice_agent.cli.console import progress
from voice_agent.cli.runtime import begin
from voice_agent.clock import Clock, MonotonicClock
from voice_agent.config import Config
from voice_agent.context import Conversation
from voice_agent.machine import inspect
from voice_agent.models import ModelStore
from voice_agent.scope import CancelScope
from voice_agent.selection import FETCHABLE_LLMS, ensure, pick_device

DEFAULT_LLM = "qwen2.5-0.5b"
PATIENCE_S = 1.0
"""Deadline of an answer's first text: nobody listens."""


def run_chat(config: Config) -> None:
    """Lines from standard input, answers to standard output; an empty line or end of file ends."""
    begin(config)
    agent = load_agent(find_agent(config.default_agent, config.agents_dir))
    clock = MonotonicClock()
    with progress() as stage:
        path = None
        if config.llm.needs_engine:
            store = ModelStore(sources=config.models.sources)
            name = pick_llm(config, store)
            ensure(store, [name], fetch=config.models.fetch, stage=stage)
            stage(f"loading {name}", None)
            path = store.path(name)
        device = pick_device(config, inspect()) if config.profile == "gpu" else "cpu"
        brain = load_brain(config, path, clock, device)
        if brain.engine is not None:
            stage("warming the engine", None)
            brain.engine.warm()
            brain.engine.start()
    try:
        asyncio.run(chat(brain, agent, clock, _read_line, _write))
    finally:
        if brain.engine is not None:
            brain.engine.close()


def pick_llm(config: Config, store: ModelStore) -> str:
    """The configured model; for `auto` the default, or the small one if only that is here."""
    if config.models.llm != "auto":
        return config.models.llm
    if not config.models.fetch and not store.present(DEFAULT_LLM):
        return next((n for n in FETCHABLE_LLMS if store.present(n)), DEFAULT_LLM)
    return DEFAULT_LLM


async def chat(
    brain: Brain,
    agent: AgentFile,
    clock: Clock,
    read: Callable[[str], str | None],
    write: Callable[[str], None],
) -> None:
    """read: prompt -> a line, None at the end. write: text as it comes."""
    limit = brain.max_context * 3 // 4
    conversation = Conversation(brain.chat, brain.tokenizer, agent.instructions, limit)
    sampling = SamplingParams(
        temperature=agent.sampling.temperature,
        top_p=agent.sampling.top_p,
        top_k=agent.sampling.top_k,
        min_p=agent.sampling.min_p,
        seed=agent.sampling.seed,
        max_tokens=agent.limits.max_reply_tokens,
    )
    if agent.greeting:
        write(f"{agent.name}: {agent.greeting}\n")
        ids = brain.tokenizer.encode(agent.greeting)
        conversation.add_assistant(ids, agent.greeting, len(agent.greeting))
    try:
        await brain.thinker.prepare(conversation.prefix(), agent=agent.name, tenant=agent.tenant)
        while line := await asyncio.to_thread(read, "you: "):
            write(f"{agent.name}: ")
            thinking = brain.thinker.think(
                conversation.prompt(line),
                sampling,
                call="chat",
                tenant=agent.tenant,
                deadline_s=clock.now() + PATIENCE_S,
                scope=CancelScope("chat"),
            )
            text, ids = "", []
            async with aclosing(thinking.__aiter__()) as thoughts:
                async for thought in thoughts:
                    thinking.keep()
                    write(thought.text)
                    text += thought.text
                    ids += thought.token_ids
            write("\n")
            conversation.add_user(line)
            conversation.add_assistant(ids, text, len(text))
            conversation.make_room()
    finally:
        await brain.thinker.close()


def _read_line(prompt: str) -> str | None:
    try:
        return input(prompt if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
