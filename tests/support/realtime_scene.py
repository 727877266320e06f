"""A Realtime session on a real call with scripted stages, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gateway.realtime.session import RealtimeSession
from voice_agent.events import EndReason, Event
from voice_agent.types import FRAME_MS, IN_FRAME, Frame, Pcm16

from .fakes import Scene, silence
from .virtual_loop import run_virtual

Part = Pcm16 | Callable[["Talk"], object]


class Talk(Scene):
    """`converse` plays sounds and runs callables; `told` is all that the client was told."""

    def __init__(self, reply: Callable[[str], str] | str, **options: Any) -> None:
        self.carries_audio = options.pop("carries_audio", True)
        super().__init__(reply, **options)
        self.told: list[dict[str, Any]] = []
        self.session = RealtimeSession(
            self, "gpt-realtime", lead_ms=0, carries_audio=self.carries_audio
        )

    # the session's outbox
    def put(self, text: str, key: str | None = None) -> None:
        self.told.append(json.loads(text))

    def drop(self, key: str) -> None: ...

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        self.session.on_event(event)

    def send(self, kind: str, **fields: Any) -> None:
        self.session.receive(json.dumps({"type": kind, **fields}))

    def update(self, **session: Any) -> None:
        self.send("session.update", session={"type": "realtime", **session})

    def say(self, text: str, role: str = "user", **more: Any) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        self.send("conversation.item.create", item={**item, **more.pop("item", {})}, **more)

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.told if e["type"] == kind]

    def last(self, kind: str) -> dict[str, Any]:
        return self.all(kind)[-1]

    def converse(self, *parts: Part, tail_ms: int = 3000) -> Talk:
        run_virtual(self._converse([*parts, silence(tail_ms)]), self.loop)
        return self

    async def _converse(self, parts: Sequence[Part]) -> None:
        await self.stack.start()
        call = self.call = self.stack.open_call(None, self.on_event)
        self.session.attach(call)
        life = asyncio.create_task(call.run())
        await asyncio.sleep(0)
        k, start = 0, self.loop.now()
        for part in parts:
            if not isinstance(part, np.ndarray):
                part(self)
                continue
            part = np.pad(part, (0, -len(part) % IN_FRAME))
            for i in range(0, len(part), IN_FRAME):
                k += 1
                await asyncio.sleep(start + k * FRAME_MS / 1000 - self.loop.now())
                call.hear(Frame(part[i : i + IN_FRAME]))
                self.session.pull()
                for tick in call.client.aside_ticks():
                    self.session._responses.sent(tick)
        call.hang_up(EndReason.CALLER_HUNG_UP)
        self.reason = await life
        await self.stack.close()
