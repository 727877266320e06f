"""One media stream: the platform's messages in, the call's sound and marks out.

Knows neither sockets nor the time of day: `receive` gets a message, `on_event` a call's event,
`tick` one 20 ms step of the process's clock.

A mark is sent behind every 100 ms of our voice and comes back when the caller has heard so far:
that is how we know what was heard. `clear` empties the platform's buffer after a barge-in; the
marks in it come back too, and are not taken for heard.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import numpy as np

from gateway.call_port import CallPort
from gateway.media import g711
from gateway.media.echo import EchoGuard
from gateway.media.resample import Resampler
from gateway.realtime.audio_in import AudioInput
from gateway.realtime.client_events import UlawFormat
from gateway.realtime.errors import ProtocolError
from voice_agent.clock import Clock
from voice_agent.errors import VoiceAgentError
from voice_agent.events import Event, ReplyDone, ReplyStatus
from voice_agent.playout import Tick
from voice_agent.types import FRAME_MS, OUT_RATE, Frame, Pcm16, ReplyId

from .wire import Dtmf, Mark, Media, Start, StartBody, Stop, message, parse

MARK_EVERY = 5  # frames of our voice
MAX_MARKS = 256  # under way; a platform that returns none is not waited for
SOUND = "sound"


class Outbox(Protocol):
    """Where messages wait for the socket. key: lets late sound of a cut reply be dropped."""

    def put(self, text: str, key: str | None = None) -> None: ...

    def drop(self, key: str) -> None: ...


class TwilioSession:
    """Owns the state of one stream from its `start` on."""

    def __init__(
        self,
        outbox: Outbox,
        start: StartBody,
        call: CallPort,
        clock: Clock,
        *,
        lead_ms: int,
        on_error: Callable[[str], None] = lambda code: None,
        on_frame: Callable[[Frame], None] = lambda frame: None,
        on_quiet: Callable[[], None] = lambda: None,
        guard: EchoGuard | None = None,
    ) -> None:
        """on_quiet: everything sent has been heard, or was cut."""
        self.stopped = False
        self._outbox = outbox
        self._stream = start.streamSid
        self._call = call
        self._clock = clock
        self._on_error = on_error
        self._on_frame = on_frame
        self._on_quiet = on_quiet
        self._guard = guard
        self._input = AudioInput(self._hear, UlawFormat(type="audio/pcmu"))
        self._lead_frames = lead_ms // FRAME_MS
        self._ahead = 0  # frames that the platform has and has not played yet
        self._speaking: ReplyId | None = None
        self._resampler = Resampler(OUT_RATE, g711.RATE)
        self._since_mark = 0
        self._n_marks = 0
        self._marks: OrderedDict[str, float] = OrderedDict()  # name -> when it was sent, s

    @property
    def quiet(self) -> bool:
        """Everything sent has been heard."""
        return not self._marks

    # ------------------------------------------------------------ the clock

    def tick(self) -> None:
        """20 ms: hear what waits, then send our voice, up to `lead_ms` ahead of its playing."""
        self._input.tick()
        self._ahead = max(0, self._ahead - 1)
        while True:
            frame = self._call.tick()
            if frame.audible and frame.reply is not None:
                self._say(frame, frame.reply)
            if not frame.audible or self._ahead > self._lead_frames:
                break
        if self._guard is not None:
            self._guard.tick()

    def _say(self, frame: Tick, reply: ReplyId) -> None:
        if reply != self._speaking:
            self._speaking = reply
            self._resampler.reset()
        self._ahead += 1
        self._since_mark += 1
        self._media(frame.pcm)
        if self._guard is not None:
            self._guard.sent(frame.pcm)
        if frame.finished is not None:
            self._media(np.zeros(OUT_RATE // 100, np.int16))  # the filter's last millisecond
        if frame.finished is not None or self._since_mark >= MARK_EVERY:
            self._mark()

    def _media(self, pcm: Pcm16) -> None:
        payload = base64.b64encode(g711.encode_ulaw(self._resampler.push(pcm))).decode("ascii")
        self._outbox.put(message("media", self._stream, media={"payload": payload}), SOUND)

    def _mark(self) -> None:
        self._since_mark = 0
        self._n_marks += 1
        name = str(self._n_marks)
        self._marks[name] = self._clock.now()
        if len(self._marks) > MAX_MARKS:
            self._marks.popitem(last=False)
        self._outbox.put(message("mark", self._stream, mark={"name": name}), SOUND)

    # ------------------------------------------------------------ from the call

    def on_event(self, event: Event) -> None:
        if not isinstance(event, ReplyDone) or event.status is ReplyStatus.COMPLETED:
            return
        if event.reply == self._speaking:
            self._cut()

    def _cut(self) -> None:
        self._speaking = None
        self._ahead = self._since_mark = 0
        self._marks.clear()
        self._outbox.drop(SOUND)
        self._outbox.put(message("clear", self._stream))
        self._on_quiet()
        if self._guard is not None:
            self._guard.cut()

    # ------------------------------------------------------------ from the platform

    def receive(self, text: str | bytes) -> None:
        """One message. What is wrong with it is counted; nothing is raised, the call goes on."""
        try:
            self._take(text)
        except (ProtocolError, VoiceAgentError) as error:
            self._on_error(error.code)

    def _take(self, text: str | bytes) -> None:
        match parse(text):
            case Media(media=media):
                if media.track.startswith("inbound"):
                    self._input.append(media.payload)
            case Mark(mark=mark):
                self._heard_to(mark.name)
            case Dtmf(dtmf=dtmf):
                self._call.press(dtmf.digit)
            case Stop():
                self.stopped = True
            case Start():
                raise ProtocolError("invalid_value", "The stream has started already.")
            case _:
                pass

    def _heard_to(self, name: str) -> None:
        sent_s = self._marks.get(name)
        if sent_s is None:
            return  # not ours, or of a reply that was cut
        while next(iter(self._marks)) != name:
            self._marks.popitem(last=False)
        del self._marks[name]
        self._call.playing_behind(round((self._clock.now() - sent_s) * 1000))
        if self.quiet:
            self._on_quiet()

    def _hear(self, frame: Frame) -> None:
        self._on_frame(frame)
        self._call.hear(frame if self._guard is None else self._guard.heard(frame))
