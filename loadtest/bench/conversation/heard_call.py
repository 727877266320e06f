"""A call whose reply is cut, with a client on its other end that records what it plays.

Clients:

* `truncates`: a Realtime client that says how much it played (`conversation.item.truncate`);
* `reports`: the page, which tells how far behind it plays all the time;
* `silent`: a Realtime client that tells nothing; the server has `websocket_lead_ms` alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.sampling import SamplingParams
from gateway.realtime.session import RealtimeSession
from voice_agent.agent import Call
from voice_agent.agent_file import AgentFile, AgentShelf
from voice_agent.context import Prompt, Role
from voice_agent.errors import InternalError
from voice_agent.events import EndReason, Event, ReplyDone, ReplyStatus
from voice_agent.plain_text import PlainChat, PlainTokenizer
from voice_agent.replay.virtual_loop import VirtualLoop, run_virtual
from voice_agent.reply import Speaker
from voice_agent.scope import CancelScope
from voice_agent.stack import Stack
from voice_agent.stt.base import Transcript
from voice_agent.types import FRAME_MS, Pcm16, PcmF32
from voice_agent.vad import SileroVad, VadService

from .player import PER_MS, Player
from .virtual import Reciter, StageTimes

LEAD_MS = 100  # what the gateway's `websocket_lead_ms` is by default
REPORT_MS = 250
REPORT_ERROR_MS = 8  # of a page's statistics
AFTER_CUT_MS = 400


class Client(StrEnum):
    TRUNCATES = "truncates"
    REPORTS = "reports"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Cut:
    """One reply, cut `after_ms` after its first sound left. network_ms: one way."""

    client: Client
    buffer_ms: int
    text: str
    after_ms: int
    network_ms: int
    seed: int


class _Shelf(AgentShelf):
    def __init__(self) -> None:
        super().__init__(Path("."))
        self._file = AgentFile(name="bench", instructions="Answer the telephone.", greeting="")

    def get(self, name: str) -> tuple[AgentFile, None]:
        return self._file, None


class _Unheard(SileroVad):
    """The caller says nothing: no model is needed."""

    def __init__(self) -> None: ...

    def score(
        self, windows: NDArray[np.float32], states: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return np.zeros(len(windows), np.float32), states


class _Deaf:
    """Implements `Recognizer` for a caller who says nothing."""

    name, sample_rate = "none", 16_000

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        raise InternalError("nobody spoke")

    def warm(self) -> None: ...

    def close(self) -> None: ...


class _Thinker(Reciter):
    """Recites the text, and keeps what it was asked with."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda: text, StageTimes())
        self.prompts: list[Prompt] = []

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
        **more: Any,
    ) -> Any:
        self.prompts.append(prompt)
        return super().think(
            prompt, sampling, call=call, tenant=tenant, deadline_s=deadline_s, scope=scope, **more
        )


@dataclass
class _Wire:
    """Both ends of a call and the network between them. `recording` once the client has stopped."""

    cut: Cut
    loop: VirtualLoop
    player: Player
    call: Call | None = None
    session: RealtimeSession | None = None
    recording: Pcm16 | None = None
    item_id: str = ""
    first_sent_ms: float = 0.0
    random: random.Random = field(default_factory=random.Random)

    @property
    def now_ms(self) -> float:
        return self.loop.now() * 1000

    def carry(self, act: Callable[[], None]) -> None:
        """To the other end."""
        self.loop.call_later(self.cut.network_ms / 1000, act)

    # ------------------------------------------------------------ the server's end

    def put(self, text: str, key: str | None = None) -> None:
        """Outbox of the session: the socket takes everything at once."""
        message = json.loads(text)
        if message["type"] == "response.output_audio.delta" and not self.first_sent_ms:
            self.first_sent_ms = self.now_ms
        self.carry(lambda: self.receive(message))

    def drop(self, key: str) -> None: ...

    def on_event(self, event: Event) -> None:
        if self.session is not None:
            self.session.on_event(event)
        elif isinstance(event, ReplyDone) and event.status is not ReplyStatus.COMPLETED:
            self.carry(self.stop)

    def tick(self) -> None:
        assert self.call is not None
        if self.session is not None:
            self.session.tick()
            return
        tick = self.call.tick()
        if not self.first_sent_ms and tick.audible:
            self.first_sent_ms = self.now_ms
        if self.first_sent_ms:
            self.carry(lambda: self.player.receive(self.now_ms, tick.pcm))

    # ------------------------------------------------------------ the client's end

    def receive(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "response.output_item.added":
                self.item_id = message["item"]["id"]
            case "response.output_audio.delta":
                pcm = np.frombuffer(base64.b64decode(message["delta"]), np.int16)
                self.player.receive(self.now_ms, pcm)
            case "response.done":
                self.stop()
            case "error":
                raise InternalError(message["error"]["message"])

    def stop(self) -> None:
        """The player stops at once; a client that can says how much it played."""
        if self.recording is not None:
            return
        self.recording = self.player.stop(self.now_ms)
        if self.cut.client is Client.TRUNCATES:
            event = {
                "type": "conversation.item.truncate",
                "item_id": self.item_id,
                "content_index": 0,
                "audio_end_ms": len(self.recording) // PER_MS,
            }
            session = self.session
            assert session is not None
            self.carry(lambda: session.receive(json.dumps(event)))

    def report(self) -> None:
        """What the page's statistics say, sent every `REPORT_MS`."""
        wrong = self.random.uniform(-REPORT_ERROR_MS, REPORT_ERROR_MS)
        ms, call = max(0, round(self.cut.buffer_ms + wrong)), self.call
        assert call is not None
        self.carry(lambda: call.playing_behind(ms))


def talk(cut: Cut, speaker: Speaker) -> tuple[Pcm16, str]:
    """One call with one reply that is cut: what the client's player played of it, and what the
    call's next prompt has of it."""
    loop = VirtualLoop()
    thinker = _Thinker(cut.text)
    wire = _Wire(cut, loop, Player(cut.buffer_ms), random=random.Random(cut.seed))
    run_virtual(_talk(wire, thinker, speaker), loop)
    assert wire.recording is not None
    ours = [text for role, text in thinker.prompts[-1].messages if role is Role.ASSISTANT]
    return wire.recording, ours[-1] if ours else ""


async def _talk(wire: _Wire, thinker: _Thinker, speaker: Speaker) -> None:
    cut, loop = wire.cut, wire.loop
    stack = Stack(
        clock=loop,
        vad=VadService(loop, _Unheard()),
        smart_turn=None,
        recognizer=_Deaf(),
        thinker=thinker,
        chat=PlainChat(),
        tokenizer=PlainTokenizer(),
        speakers={"bench": speaker},
        default_voice="bench",
        shelf=_Shelf(),
        names=["bench"],
        max_context=8192,
    )
    await stack.start()
    page = cut.client is Client.REPORTS
    if not page:
        wire.session = RealtimeSession(wire, "bench", lead_ms=LEAD_MS)
    call = wire.call = stack.open_call(None, wire.on_event, 0 if page else LEAD_MS)
    if wire.session is not None:
        wire.session.attach(call)
    life = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    _ask(call)
    start, k, asked_again = loop.now(), 0, False
    while not asked_again:
        k += 1
        await asyncio.sleep(start + k * FRAME_MS / 1000 - loop.now())
        if page and k % (REPORT_MS // FRAME_MS) == 0:
            wire.report()
        wire.tick()
        since_ms = wire.now_ms - wire.first_sent_ms if wire.first_sent_ms else 0.0
        if since_ms >= cut.after_ms and call.client.cancel_reply():
            continue
        if wire.recording is not None and since_ms >= cut.after_ms + AFTER_CUT_MS:
            asked_again = True
            _ask(call)
            await asyncio.sleep(0.01)
    call.hang_up(EndReason.CALLER_HUNG_UP)
    await life
    await stack.close()


def _ask(call: Call) -> None:
    call.client.add_message("user", "Tell me, please.")
    call.client.respond()
