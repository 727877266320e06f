"""`voice-agent talk`: the stack of a live call, and a recorded caller."""

from __future__ import annotations

import asyncio
from pathlib import Path

from voice_agent.cli.console import progress
from voice_agent.cli.runtime import begin, settle
from voice_agent.config import Config
from voice_agent.errors import UsageError


def run_call(
    config: Config, wav: Path, out: Path, json_path: Path | None, record: Path | None = None
) -> None:
    """Load, start, talk, close. Raises UsageError for an unusable file before loading anything."""
    from voice_agent.audio import read_wav

    begin(config)
    read_wav(wav)
    for path in (out, json_path, record):
        if path is not None and not path.parent.is_dir():
            raise UsageError(
                f"there is no folder {path.parent} to write {path.name} to", code="VA475"
            )
    asyncio.run(_call(config, wav, out, json_path, record))


async def _call(
    config: Config, wav: Path, out: Path, json_path: Path | None, record: Path | None
) -> None:
    from rich.console import Console

    from voice_agent.cli.talk import run_talk
    from voice_agent.loading import load_stack
    from voice_agent.replay.record import TapedCall, taped
    from voice_agent.replay.tape import save

    with progress() as stage:
        stack = await load_stack(config, stage)
        stage("greetings and prompts", None)
        await stack.start()
    settle()
    calls: list[TapedCall] = []
    if record is not None:
        stack.make_call = taped(calls.append)
    try:
        await run_talk(stack, wav, out, json_path, Console())
        if record is not None:
            await asyncio.to_thread(save, calls[0].recorded(), record)
    finally:
        await stack.close()
