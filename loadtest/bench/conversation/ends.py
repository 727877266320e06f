"""What the language model makes of a caller's words at a pause, kept by what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path

from engine.client import Engine
from engine.config import EngineConfig
from voice_agent.context import Role
from voice_agent.end_of_utterance import CALIBRATION, Calibration, EndModel

from .kept import Kept

KV_BYTES = 64 << 20
RAW = Calibration(1.0, 0.0)


class Ends:
    """Answers at once, on whatever loop: the engine has a thread and a loop of its own, and is
    loaded when something is asked that was never kept."""

    def __init__(self, model: str, path: Path, kept: Kept) -> None:
        self._model = model
        self._path = path
        self._kept = kept
        self._engine: Engine | None = None
        self._loop = asyncio.new_event_loop()

    def log_odds(self, messages: Sequence[tuple[Role, str]]) -> float:
        """That the last message, the caller's, is whole."""
        asked = json.dumps([[str(role), text] for role, text in messages])
        key = Kept.key(f"{self._model} end of utterance", asked)
        known = self._kept.get(key)
        if known is None:
            known = asyncio.run_coroutine_threadsafe(self._ask(messages), self._running()).result()
            self._kept.put(key, known)
        return CALIBRATION(float(known))

    async def _ask(self, messages: Sequence[tuple[Role, str]]) -> float:
        assert self._engine is not None
        *said, (_, words) = messages
        chat = self._engine.chat
        ids = [*chat.dialogue(said), *chat.user_open(words)]
        told = await EndModel(self._engine, RAW).log_odds(ids)
        assert told is not None
        return told

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._engine is None:
            self._engine = Engine.load(EngineConfig(model_path=self._path, kv_bytes=KV_BYTES))
            self._engine.warm()
            self._engine.start()
            threading.Thread(target=self._loop.run_forever, name="ends", daemon=True).start()
        return self._loop

    def close(self) -> None:
        """End the engine, if there is one."""
        if self._engine is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._engine.close()
            self._engine = None
