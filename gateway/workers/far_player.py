"""The core's end of a player that is in a media worker: sends ahead, and takes its reports."""

from __future__ import annotations

import numpy as np

from voice_agent.player import NO_REPLY, Played, Sound
from voice_agent.types import OUT_FRAME, SILENT_OUT, Pcm16

from .link import FINISHED, LEAD, TAKES, UNDERRUN, DownFrame, Link, UpFrame

NOTHING = Played(SILENT_OUT)


class FarPlayer:
    """One line's `voice_agent.player.Sounding` over the link.

    All sound of the reply is queued here; at most LEAD samples of it are sent beyond what was
    played. A *take* is a stretch of the reply played without a jump: reports of an earlier take,
    still on their way when a seek was sent, say nothing about this one.
    """

    def __init__(self, line: int, link: Link) -> None:
        self._line = line
        self._link = link
        self._reply = NO_REPLY
        self._take = 0
        self._sound = Sound()
        self._sent = 0
        self._played = 0
        self._report = NOTHING

    def begin(self, reply: int) -> None:
        self._reply = reply
        self._new_take(0)
        self._link.tell(self._line, "begin", reply=reply)

    def _new_take(self, at: int) -> None:
        self._take = (self._take + 1) % TAKES
        self._sound = Sound(at)
        self._sent = self._played = at

    def play(self, reply: int, offset: int, pcm: Pcm16) -> None:
        if reply == self._reply and offset == self._sound.end:
            self._sound.append(pcm)
            self._send()

    def _send(self) -> None:
        until = min(self._sound.end, self._played + LEAD)
        while self._sent < until:
            pcm = self._sound.peek(self._sent, min(OUT_FRAME, until - self._sent))
            self._link.put(DownFrame(self._line, self._reply, self._sent, pcm))
            self._sent += len(pcm)

    def end(self, reply: int, total: int) -> None:
        if reply == self._reply:
            self._link.tell(self._line, "end", reply=reply, total=total)

    def hold(self) -> None:
        self._link.tell(self._line, "hold")

    def resume(self) -> None:
        self._link.tell(self._line, "resume")

    def seek(self, reply: int, at: int) -> None:
        if reply == self._reply:
            self._new_take(at)
            self._link.tell(self._line, "seek", reply=reply, at=at)

    def duck(self, gain: float) -> None:
        self._link.tell(self._line, "duck", gain=gain)

    def flush(self, reply: int) -> None:
        if reply == self._reply:
            self._reply = NO_REPLY
            self._sound.clear()
            self._link.tell(self._line, "flush", reply=reply)

    def reported(self, frame: UpFrame) -> None:
        """One tick of the worker; the next `tick` returns it."""
        self._report = NOTHING
        if self._reply == NO_REPLY or frame.reply != self._reply or frame.take != self._take:
            return
        pcm = self._sound.peek(frame.offset, frame.played)
        if 0 < len(pcm) < OUT_FRAME:
            pcm = np.concatenate([pcm, SILENT_OUT[len(pcm) :]])
        self._played = max(self._played, frame.offset + frame.played)
        self._sound.drop_before(min(self._played, self._sent))
        self._send()
        self._report = Played(
            pcm if len(pcm) else SILENT_OUT,
            frame.reply,
            frame.offset,
            frame.played,
            bool(frame.state & FINISHED),
            bool(frame.state & UNDERRUN),
        )

    def tick(self) -> Played:
        """What was played, before fades; nothing if the worker has not reported since."""
        report, self._report = self._report, NOTHING
        return report
