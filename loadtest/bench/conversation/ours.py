"""A scene through this server's own call, in process and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.media.echo import EchoGuard, EchoMode
from voice_agent.agent_file import AgentFile, AgentShelf
from voice_agent.events import (
    CallFault,
    EndReason,
    Event,
    ReplyDone,
    ReplyStatus,
    TurnCommitted,
)
from voice_agent.plain_text import PlainChat, PlainTokenizer
from voice_agent.playout import Tick
from voice_agent.replay.virtual_loop import VirtualLoop, run_virtual
from voice_agent.stack import Stack
from voice_agent.types import FRAME_MS, OUT_FRAME, Frame, Pcm16
from voice_agent.vad import SileroVad, VadService

from .ends import Ends
from .room import Room
from .scene import REPLIES, Scene
from .virtual import (
    Recall,
    Reciter,
    StageTimes,
    Studio,
    VirtualRecognizer,
    VirtualSmartTurn,
    VirtualSpeaker,
)
from .watch import Commit, Over, Run, Watcher

ASK_MS = 300  # an agent who begins is asked to this long after the call has begun
AUDIBLE_RMS = 30.0  # below it a frame's gain is not to be told


@dataclass(frozen=True, slots=True)
class Kit:
    """What is loaded once for all scenes of a process."""

    vad: SileroVad
    recall: Recall
    smart_turn: VirtualSmartTurn
    studio: Studio
    times: StageTimes
    ends: Ends

    def sound_of(self, text: str) -> Pcm16:
        """A whole reply as it is sent: int16 [n] at 24 kHz."""
        return self.studio.reply(text)


class _Shelf(AgentShelf):
    def __init__(self, file: AgentFile) -> None:
        super().__init__(Path("."))
        self._file = file

    def get(self, name: str) -> tuple[AgentFile, None]:
        return self._file, None


def texts(scene: Scene) -> Callable[[], str]:
    """The scene's reply, then the others in turn."""
    n = scene.reply - 1

    def following() -> str:
        nonlocal n
        n += 1
        return REPLIES[n % len(REPLIES)]

    return following


def run_ours(scene: Scene, kit: Kit, seed: int) -> Run:
    """The call as the server makes it: default settings, echo handling `auto` as on a telephone."""
    loop = VirtualLoop()
    room = Room(scene, seed)
    watcher = Watcher(scene, room)
    run_virtual(_call(scene, kit, loop, room, watcher), loop)
    return watcher.run


async def _call(scene: Scene, kit: Kit, loop: VirtualLoop, room: Room, watcher: Watcher) -> None:
    file = AgentFile(name="bench", instructions="Answer the telephone.", greeting="")
    stack = Stack(
        clock=loop,
        vad=VadService(loop, kit.vad),
        smart_turn=kit.smart_turn,
        recognizer=VirtualRecognizer(kit.recall),
        thinker=Reciter(texts(scene), kit.times, kit.ends),
        chat=PlainChat(),
        tokenizer=PlainTokenizer(),
        speakers={"bench": VirtualSpeaker(kit.studio, kit.times)},
        default_voice="bench",
        shelf=_Shelf(file),
        names=["bench"],
        max_context=8192,
    )
    await stack.start()
    start = loop.now()
    events = _Events(watcher.run, loop, start)
    call = stack.open_call(None, events.take, scene.player_ms)
    life = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    guard = EchoGuard(EchoMode.AUTO, lambda found: call.tell_echo(found.verdict, str(found)))
    made = kit.sound_of(REPLIES[scene.reply])
    asked = not scene.agent_first
    while not watcher.finished and not life.done():
        k = len(watcher.run.reply) + 1
        await asyncio.sleep(start + k * FRAME_MS / 1000 - loop.now())
        if not asked and k * FRAME_MS >= ASK_MS:
            asked = True
            call.client.add_message("user", "Tell me, please.")
            call.client.respond()
        call.hear(guard.heard(Frame(room.hear())))
        tick = call.tick()
        guard.sent(tick.pcm)
        guard.tick()
        room.play(tick.pcm)
        reply = tick.reply.n if tick.reply is not None else -1
        gain = _gain(tick, made) if scene.agent_first and reply == 0 else float(tick.audible)
        watcher.tick(reply, tick.audible, tick.offset, gain)
    events.over = True
    call.hang_up(EndReason.CALLER_HUNG_UP)
    await life
    await stack.close()


class _Events:
    """What the call tells its transport, as the run's record."""

    def __init__(self, run: Run, loop: VirtualLoop, start: float) -> None:
        self._run = run
        self._loop = loop
        self._start = start
        self.over = False  # what the hang-up does is no part of the scene

    def take(self, event: Event) -> None:
        if self.over:
            return
        ms = (self._loop.now() - self._start) * 1000
        if isinstance(event, TurnCommitted):
            self._run.commits.append(Commit(ms, event.text))
        elif isinstance(event, ReplyDone):
            done = event.status is ReplyStatus.COMPLETED
            self._run.overs.append(Over(ms, event.reply.n, done, event.heard))
        elif isinstance(event, CallFault):
            self._run.faults.append(event.message)


def _gain(tick: Tick, made: Pcm16) -> float:
    """How loud a frame is sent, against the sound `made` it was made from."""
    source = made[tick.offset : tick.offset + OUT_FRAME]
    if not tick.audible:
        return 0.0
    level = _rms(source) if len(source) == OUT_FRAME else 0.0
    return _rms(tick.pcm) / level if level > AUDIBLE_RMS else 1.0


def _rms(pcm: Pcm16) -> float:
    return float(np.sqrt(np.square(pcm.astype(np.float32)).mean()))
