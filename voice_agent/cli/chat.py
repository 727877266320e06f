"""`voice-agent chat`: type with the agent; the prompt and engine of a call, without sound."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from engine.client import Engine
from engine.config import EngineConfig
from engine.sampling import SamplingParams
from voice_agent.agent_file import AgentFile, find_agent, load_agent
from voice_agent.cli.console import progress
from voice_agent.cli.runtime import begin
from voice_agent.clock import MonotonicClock
from voice_agent.config import Config
from voice_agent.context import Conversation
from voice_agent.models import ModelStore
from voice_agent.selection import FETCHABLE_LLMS, ensure

DEFAULT_LLM = "qwen2.5-0.5b"


def run_chat(config: Config) -> None:
    """Lines from standard input, answers to standard output; an empty line or end of file ends."""
    begin(config)
    agent = load_agent(find_agent(config.default_agent, config.agents_dir))
    store = ModelStore(sources=config.models.sources)
    name = pick_llm(config, store)
    with progress() as stage:
        ensure(store, [name], fetch=config.models.fetch, stage=stage)
        stage(f"loading {name}", None)
        engine = load_engine(config, store, name)
        stage("warming the engine", None)
        engine.warm()
    engine.start()
    try:
        asyncio.run(chat(engine, agent, _read_line, _write))
    finally:
        engine.close()


def pick_llm(config: Config, store: ModelStore) -> str:
    """The configured model; for `auto` the default, or the small one if only that is here."""
    if config.models.llm != "auto":
        return config.models.llm
    if not config.models.fetch and not store.present(DEFAULT_LLM):
        return next((n for n in FETCHABLE_LLMS if store.present(n)), DEFAULT_LLM)
    return DEFAULT_LLM


def load_engine(config: Config, store: ModelStore, name: str) -> Engine:
    """An engine for one typed conversation. Raises the engine's and the store's errors."""
    section = config.engine
    return Engine.load(
        EngineConfig(
            model_path=store.path(name),
            quant=section.quant,
            threads=section.threads or 1,
            kv_bytes=section.kv_mb << 20,
            max_model_len=section.max_model_len,
            max_batch=section.max_batch,
        ),
        MonotonicClock(),
    )


async def chat(
    engine: Engine,
    agent: AgentFile,
    read: Callable[[str], str | None],
    write: Callable[[str], None],
) -> None:
    """read: prompt -> a line, None at the end. write: text as it comes."""
    limit = engine.max_model_len * 3 // 4
    conversation = Conversation(engine.chat, engine.tokenizer, agent.instructions, limit)
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
        ids = engine.tokenizer.encode(agent.greeting)
        conversation.add_assistant(ids, agent.greeting, len(agent.greeting))
    while True:
        line = await asyncio.to_thread(read, "you: ")
        if not line:
            return
        write(f"{agent.name}: ")
        generation = engine.submit(conversation.prompt(line).ids, sampling, tenant=agent.tenant)
        text, ids = "", []
        async for delta in generation:
            write(delta.text)
            text += delta.text
            ids += delta.token_ids
        write("\n")
        conversation.add_user(line)
        conversation.add_assistant(ids, text, len(text))
        conversation.make_room()


def _read_line(prompt: str) -> str | None:
    try:
        return input(prompt if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
