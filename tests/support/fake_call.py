"""A call without models, for the gateway's own tests: loud frames are speech, a tone is our voice.

It speaks the events of voice_agent/events.py in the order the real one does, so that transports
can be tested in milliseconds. It knows nothing of language.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.client import Engine
from engine.histogram import HistogramSnapshot
from voice_agent.client_requests import LAST
from voice_agent.context import Key
from voice_agent.errors import UsageError
from voice_agent.events import (
    CallEnded,
    CallStarted,
    EndReason,
    Event,
    Partial,
    ReplyDone,
    ReplySounds,
    ReplyStarted,
    ReplyStatus,
    ReplyText,
    SpeechStarted,
    SpeechStopped,
    ToolStarted,
    TurnCommitted,
    TurnTraced,
    WordsHeard,
)
from voice_agent.glance import Glance
from voice_agent.line import Line
from voice_agent.outlook import Outlook
from voice_agent.own_words import Echo
from voice_agent.player import Player, Sounding
from voice_agent.playout import Tick
from voice_agent.reply_settings import AS_THE_CALL, ReplySettings
from voice_agent.shedding import Shed
from voice_agent.trace import Mark, TurnTrace
from voice_agent.types import FRAME_MS, OUT_FRAME, OUT_RATE, SILENT_OUT, Frame, ReplyId, TurnId

LOUD = 400.0
ONSET_FRAMES = 6
END_FRAMES = 20


def tone(n_samples: int, hz: float = 440.0, start: int = 0, level: int = 8000) -> np.ndarray:
    t = (np.arange(n_samples) + start) / OUT_RATE
    return (level * np.sin(2 * np.pi * hz * t)).astype(np.int16)


@dataclass
class FakeReply:
    id: ReplyId
    text: str
    samples: int
    played: int = 0
    trace: TurnTrace | None = None


@dataclass
class FakeCall:
    """hz tells calls apart; `transcripts` are used one per turn, the last one again and again."""

    name: str
    agent: str
    on_event: Callable[[Event], None]
    lead_ms: int
    hz: float = 440.0
    greeting: str = ""
    transcripts: Sequence[str] = ("what is the time",)
    reply_text: str = "It is ten past four. Is there anything else?"
    reply_s: float = 0.6
    auto_response: bool = True
    interruptible: bool = True
    manual_turns: bool = False
    line: Line | None = None
    heard: list[Frame] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    messages: list[tuple[str, str]] = field(default_factory=list)
    asked: list[ReplySettings] = field(default_factory=list)
    results: list[tuple[str, str]] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    idle_timeout_ms: int | None = None
    truncations: list[tuple[ReplyId, int]] = field(default_factory=list)
    behind_ms: list[int] = field(default_factory=list)
    echo_notes: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    mutes: list[bool] = field(default_factory=list)
    ended: EndReason | None = None
    underruns: int = 0
    lost: bool = False
    losses: list[int] = field(default_factory=list)
    """unheard_ms of each."""

    def __post_init__(self) -> None:
        self._reply: FakeReply | None = None
        self.calls_tool: tuple[str, str] | None = None  # by the next replies: name and arguments
        self._player: Sounding = Player()
        self._n_replies = 0
        self._turn = TurnId(self.name, -1)
        self._loud = self._quiet = 0
        self._speaking = False
        self._uncommitted = 0
        self._end: asyncio.Event = asyncio.Event()

    @property
    def client(self) -> FakeCall:
        return self

    def glance(self) -> Glance:
        floor = "speaking" if self._reply is not None else "idle"
        return Glance(self.agent, "speaking" if self._speaking else "silent", floor, 2.0, 1, 480.0)

    async def run(self) -> EndReason:
        self.on_event(CallStarted(self.name, self.agent))
        if self.greeting:
            self._begin(self.greeting, None)
        await self._end.wait()
        assert self.ended is not None
        if self._reply is not None:
            self._finish(ReplyStatus.CANCELLED)
        self.on_event(CallEnded(self.name, self.ended))
        return self.ended

    def press(self, key: str) -> None:
        self.keys.append(key)

    def hang_up(self, reason: EndReason) -> None:
        if self.ended is None:
            self.ended = reason
        self._end.set()

    # ------------------------------------------------------------ hearing

    def tell_echo(self, echo: Echo, note: str) -> None:
        self.echo_notes.append(note)

    def hear(self, frame: Frame) -> None:
        assert frame.pcm.shape == (320,)
        assert frame.pcm.dtype == np.int16
        if self.lost:
            return
        self.heard.append(frame)
        self._uncommitted += 1
        loud = float(np.sqrt(np.mean(frame.pcm.astype(np.float64) ** 2))) > LOUD
        self._loud = self._loud + 1 if loud else 0
        self._quiet = 0 if loud else self._quiet + 1
        if self.manual_turns:
            return
        if not self._speaking and self._loud >= ONSET_FRAMES:
            self._onset()
        elif self._speaking and self._loud == 3 * ONSET_FRAMES:
            words = self._transcript.split()
            self.on_event(Partial(self._turn, " ".join(words[:2]), " " + " ".join(words[2:3])))
        elif self._speaking and self._quiet >= END_FRAMES:
            self._commit()

    @property
    def _transcript(self) -> str:
        return self.transcripts[min(max(0, self._turn.index), len(self.transcripts) - 1)]

    def _onset(self) -> None:
        if self._reply is not None:
            if not self.interruptible:
                return
            self._finish(ReplyStatus.INTERRUPTED)
        self._speaking = True
        self._turn = self._turn.next()
        onset = max(0, (len(self.heard) - self._loud) * FRAME_MS)
        self.on_event(SpeechStarted(self._turn, onset))

    def _commit(self) -> None:
        self._speaking = False
        self._uncommitted = 0
        end = max(0, (len(self.heard) - self._quiet) * FRAME_MS)
        self.on_event(SpeechStopped(self._turn, end))
        self.on_event(TurnCommitted(self._turn, self._transcript))
        if self.auto_response and not self.manual_turns:
            self._begin(self.reply_text, self._turn)

    def commit_audio(self) -> bool:
        if self._uncommitted < 5:
            return False
        if not self._speaking:
            self._turn = self._turn.next()
            self.on_event(SpeechStarted(self._turn, 0))
        self._commit()
        return True

    def clear_audio(self) -> None:
        self._uncommitted = 0
        self._speaking = False

    # ------------------------------------------------------------ speaking

    def _begin(self, text: str, turn: TurnId | None) -> None:
        reply = ReplyId(self.name, self._n_replies, turn)
        self._n_replies += 1
        self._reply = FakeReply(reply, text, int(self.reply_s * 50) * OUT_FRAME)
        if turn is not None:
            self._reply.trace = TurnTrace(turn, reply, transcript=self._transcript)
            for i, mark in enumerate(
                (Mark.SPEECH_END, Mark.PAUSE, Mark.TRANSCRIPT, Mark.COMMIT, Mark.LLM_SUBMIT,
                 Mark.LLM_FIRST_TEXT, Mark.FIRST_CLAUSE, Mark.TTS_FIRST_AUDIO, Mark.FIRST_SOUND)
            ):  # fmt: skip
                self._reply.trace.mark(mark, 0.07 * i)
        self.on_event(ReplyStarted(reply))
        if self.calls_tool is not None:
            name, arguments = self.calls_tool
            self.on_event(ToolStarted(reply, f"call_{reply.n}_0", name, arguments, by_client=True))
        half = text.find(" ", len(text) // 2) + 1
        self.on_event(ReplyText(reply, text[:half]))
        self.on_event(ReplyText(reply, text[half:]))

        self._player.begin(reply.n)
        self._player.play(reply.n, 0, tone(self._reply.samples, self.hz))
        self._player.end(reply.n, self._reply.samples)

    @property
    def played(self) -> int | None:
        """Samples of the reply that is being said; None: nothing is."""
        return self._reply.played if self._reply is not None else None

    def play_on(self, player: Sounding) -> None:
        self._player, reply = player, self._reply
        if reply is not None:
            player.begin(reply.id.n)
            player.seek(reply.id.n, reply.played)
            rest = tone(reply.samples - reply.played, self.hz, reply.played)
            player.play(reply.id.n, reply.played, rest)
            player.end(reply.id.n, reply.samples)

    def line_lost(self, unheard_ms: int = 0) -> None:
        self.lost = True
        self.losses.append(unheard_ms)

    def line_back(self) -> None:
        self.lost = False

    def tick(self) -> Tick:
        if self.lost:
            return Tick(SILENT_OUT)
        reply, played = self._reply, self._player.tick()
        if reply is None or played.reply != reply.id.n:
            return Tick(SILENT_OUT)
        if not reply.played and played.samples:
            self.on_event(ReplySounds(reply.id))
        reply.played = played.offset + played.samples
        self.underruns += played.underrun
        chars = int(len(reply.text) * reply.played / reply.samples)
        cut = len(reply.text) if chars >= len(reply.text) else reply.text.rfind(" ", 0, chars)
        if cut > 0:
            self.on_event(WordsHeard(reply.id, cut))
        if played.finished:
            self._finish(ReplyStatus.COMPLETED)
        done = reply.id if played.finished else None
        return Tick(played.pcm, reply.id, played.samples > 0, played.offset, done, played.underrun)

    def _finish(self, status: ReplyStatus) -> None:
        reply, self._reply = self._reply, None
        assert reply is not None
        self._player.flush(reply.id.n)
        share = reply.played / reply.samples
        chars = int(len(reply.text) * share)
        heard = reply.text if share >= 1 else reply.text[: max(0, reply.text.rfind(" ", 0, chars))]
        audio_ms = reply.played * 1000 // OUT_RATE
        self.on_event(ReplyDone(reply.id, status, reply.text, heard, audio_ms, 120, 96, 12))
        if reply.trace is not None:
            reply.trace.outcome = "spoken"
            reply.trace.interrupted = status is ReplyStatus.INTERRUPTED
            self.on_event(TurnTraced(reply.trace))

    # ------------------------------------------------------------ client control

    def update(self, **settings: Any) -> None:
        if settings.get("voice") == "nobody":
            raise UsageError("there is no voice 'nobody'", code="VA114")
        self.updates.append({k: v for k, v in settings.items() if v is not None})

    def add_message(
        self, role: str, text: str, key: str | None = None, *, after: Key | None = LAST
    ) -> None:
        self.messages.append((role, text))

    def remove_message(self, key: Key) -> bool:
        return False

    def message_text(self, key: Key) -> str | None:
        return "as far as it was heard"

    def tool_call(self, call_id: str, name: str, arguments: str) -> None: ...

    def tool_result(self, call_id: str, result: str) -> None:
        if not call_id.startswith("call_"):
            raise UsageError(f"no call {call_id!r} waits for a result", code="VA119")
        self.results.append((call_id, result))

    def respond(self, asked: ReplySettings = AS_THE_CALL) -> bool:
        if self._reply is not None:
            return False
        self.asked.append(asked)
        text = asked.instructions or self.reply_text
        self._begin(text, self._turn if self._turn.index >= 0 else None)
        return True

    def aside(self, asked: ReplySettings) -> None:
        """All of it at once."""
        self.asked.append(asked)
        reply = ReplyId(self.name, self._n_replies, aside=True)
        self._n_replies += 1
        text = asked.instructions or self.reply_text
        self.on_event(ReplyStarted(reply))
        self.on_event(ReplyText(reply, text))
        self.on_event(ReplyDone(reply, ReplyStatus.COMPLETED, text, "", 0, 120, 96, 12))

    def cancel_aside(self, reply: ReplyId) -> bool:
        return False

    def aside_ticks(self) -> Sequence[Tick]:
        return ()

    async def transfer(self, target: str) -> None:
        if self.line is None:
            raise UsageError("this kind of call cannot do that", code="VA115")
        self.moved.append(target)

    def cancel_reply(self) -> bool:
        if self._reply is None:
            return False
        self._finish(ReplyStatus.CANCELLED)
        return True

    def truncate(self, reply: ReplyId, audio_ms: int) -> int:
        self.truncations.append((reply, audio_ms))
        return audio_ms

    def mute(self, on: bool) -> None:
        self.mutes.append(on)

    def playing_behind(self, ms: int) -> None:
        self.behind_ms.append(ms)


class FakeStack:
    """Opens FakeCalls; `options` go to every one of them."""

    def __init__(self, agents: Sequence[str] = ("default", "other"), **options: Any) -> None:
        self.ready = True
        self.engine: Engine | None = None
        self.engine_model = ""
        self.agents = agents
        self.options = options
        self.calls: list[FakeCall] = []
        self.shed = Shed.NOTHING

    def agent_names(self) -> Sequence[str]:
        return self.agents

    def open_call(
        self, agent_name: str | None, on_event: Callable[[Event], None], lead_ms: int
    ) -> FakeCall:
        name = agent_name or self.agents[0]
        if name not in self.agents:
            raise UsageError(f"there is no agent {name!r}", code="VA115")
        options = {"hz": 440.0 + 220.0 * len(self.calls)} | self.options
        call = FakeCall(f"call{len(self.calls)}", name, on_event, lead_ms, **options)
        self.calls.append(call)
        return call

    def outlook(self, calls: int) -> Outlook:
        return Outlook(calls)

    def histograms(self) -> Mapping[str, Mapping[str, HistogramSnapshot]]:
        return {}

    def gauges(self) -> Mapping[str, float]:
        return {"engine_running": 1.0, "stt_queue": 0.0}
