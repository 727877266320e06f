"""The engine alone: `python -m engine.example MODEL QUESTION [QUESTION...]`.

A dialogue with a .gguf file or a folder of safetensors; each answer is streamed, and what the
prefix cache saved is printed after it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.client import Engine
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.sampling import SamplingParams


async def dialogue(engine: Engine, questions: Sequence[str]) -> None:
    chat = engine.chat
    context = chat.system("You are a helpful voice assistant. Answer in one short sentence.")
    await engine.prefill(context, pin_key="system")
    for question in questions:
        context = context + chat.user(question) + chat.assistant_open()
        generation = engine.submit(context, SamplingParams(max_tokens=60))
        print(f"> {question}")
        async for delta in generation:
            print(delta.text, end="", flush=True)
            context = context + list(delta.token_ids)
        context = context + chat.assistant_close()
        usage = generation.usage
        print(f"\n  {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens were cached")


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0, or 2 with a message for a model that cannot be used."""
    if len(arguments) < 2:
        print(__doc__)
        return 2
    try:
        engine = Engine.load(EngineConfig(Path(arguments[0]), kv_bytes=64 << 20))
        engine.warm()
        engine.start()
        try:
            asyncio.run(dialogue(engine, arguments[1:]))
        finally:
            engine.close()
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
