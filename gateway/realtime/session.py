"""One Realtime session: client events in, the call's events and audio out, in the protocol's order.

Knows neither sockets nor time: `receive` gets a message, `on_event` a call's event, `tick` one
20 ms step of the process's clock, and everything for the client goes to its outbox. Sound goes
through events (WebSocket) or past them (WebRTC: `carries_audio` is False).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from gateway.call_port import CallPort
from gateway.grant import LOCAL, Grant
from gateway.media.echo import EchoGuard
from voice_agent.errors import VoiceAgentError
from voice_agent.events import (
    CallerSilent,
    CallFault,
    Event,
    Partial,
    ReplyDone,
    ReplyStatus,
    SpeechStarted,
    SpeechStopped,
    TurnCommitted,
    TurnReopened,
)
from voice_agent.playout import Tick
from voice_agent.types import FRAME_MS, Frame

from . import client_events as ce
from .audio_in import AudioInput
from .errors import ProtocolError
from .history import History
from .items import Conversation, new_id
from .line import Line, Outbox
from .permits import check_update
from .plan import declarations, tool_choice
from .responses import UNLIMITED_TOKENS, Responses
from .settings import Settings, revise
from .turn_detection import turn_taking
from .turns import Turns

log = logging.getLogger(__name__)


def _limit(settings: Settings) -> int:
    return settings.max_output_tokens or UNLIMITED_TOKENS


class RealtimeSession:
    """Owns the protocol state of one call, and of whoever else watches it."""

    def __init__(
        self,
        outbox: Outbox,
        model: str,
        *,
        lead_ms: int,
        grant: Grant = LOCAL,
        carries_audio: bool = True,
        on_error: Callable[[str], None] = lambda code: None,
        on_frame: Callable[[Frame], None] = lambda frame: None,
        guard: Callable[[bool], EchoGuard | None] = lambda telephone: None,
        rate_limits: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """guard: makes the defence against our own echo for a line that is (not) a telephone's.
        rate_limits: as the protocol lists them; nothing is told of an empty list."""
        self.line = Line(outbox)
        self._emit = self.line.emit
        self._grant = grant
        self._carries_audio = carries_audio
        self._on_error = on_error
        self._on_frame = on_frame
        self._make_guard = guard
        self._guard: EchoGuard | None = None
        self._lead_frames = lead_ms // FRAME_MS
        self._ahead = 0  # frames that the client has and has not played yet
        self._call: CallPort | None = None
        self.settings = Settings(session_id=new_id("sess"), model=model)
        self._conversation = Conversation()
        self._input = AudioInput(self._hear, self.settings.input_format)
        self._responses = Responses(
            self._conversation,
            self._emit,
            settings=lambda: self.settings,
            rate_limits=rate_limits,
            sends_audio=carries_audio,
        )
        self._turns = Turns(self._conversation, self._emit)
        self._pulling = False
        self._deferred: deque[Event] = deque()  # raised while a frame was being pulled

    def attach(self, call: CallPort, asked: dict[str, Any] | None = None) -> None:
        """Say hello: the first message of every session is `session.created`.

        asked: settings that the call was opened with. Raises ProtocolError and VoiceAgentError when
        these, or what was laid down with a token, cannot be.
        """
        self._call = call
        self._history = History(self._conversation, call, self._emit, self._grant)
        self._responses.attach(call, self._history, self._grant)
        self._guard = self._make_guard(False) if self._carries_audio else None
        if self._grant.session:
            self.configure(self._grant.session, hidden=True)
        if asked is not None:
            self.configure(asked)
        self._hello(None)

    def configure(self, session: dict[str, Any], *, hidden: bool = False) -> None:
        """Settings from outside of the session, before it begins. hidden: laid down by whoever made
        the token, so that its holder neither sees nor needs the right to them."""
        asked = ce.parse_session(session)
        after = revise(self.settings, asked)
        if not hidden:
            check_update(self._grant, self.settings, after)
        self._apply(after)
        self.settings = after if not hidden else after.kept_back()

    def _hello(self, to: Outbox | None) -> None:
        self._emit("session.created", to=to, session=self.settings.wire())
        conversation = {"id": self._conversation.id, "object": "realtime.conversation"}
        self._emit("conversation.created", to=to, conversation=conversation)

    @property
    def call(self) -> CallPort:
        assert self._call is not None
        return self._call

    def watch(self, outbox: Outbox) -> Callable[[], None]:
        """A further connection to the same session; returns what ends it."""
        leave = self.line.join(outbox)
        self._hello(outbox)
        return leave

    def error(
        self, error: ProtocolError, event_id: str | None = None, to: Outbox | None = None
    ) -> None:
        """to: who made the mistake; None: everybody is told."""
        self._on_error(error.code)
        self._emit(
            "error",
            to=to,
            error={
                "type": error.kind,
                "code": error.code,
                "message": error.message,
                "param": error.param,
                "event_id": event_id,
            },
        )

    # ------------------------------------------------------------ the clock

    def tick(self) -> None:
        """20 ms of a session that carries its sound: hear what waits, then send what the client
        will need next.

        A reply is sent `lead_ms` ahead of its playing, so that a late packet makes no hole.
        """
        self._input.tick()
        self._ahead = max(0, self._ahead - 1)
        while True:
            tick = self.pull()
            if not tick.audible or self._ahead > self._lead_frames:
                break
        for tick in self.call.client.aside_ticks():
            self._responses.sent(tick)
        if self._guard is not None:
            self._guard.tick()

    def pull(self) -> Tick:
        """The next 20 ms of our voice; what it brings about is told after it."""
        self._pulling = True
        try:
            tick = self.call.tick()
        finally:
            self._pulling = False
        if tick.audible and tick.reply is not None:
            self._ahead += 1
            response = self._responses.sent(tick)
            if self._guard is not None and response is not None and response.speaks:
                self._guard.sent(tick.pcm)
        while self._deferred:
            self._handle(self._deferred.popleft())
        return tick

    def _hear(self, frame: Frame) -> None:
        self._on_frame(frame)
        self.call.hear(frame if self._guard is None else self._guard.heard(frame))

    # ------------------------------------------------------------ from the call

    def on_event(self, event: Event) -> None:
        """Events that a tick raises wait until its frame is sent: `done` follows the last audio."""
        if self._pulling:
            self._deferred.append(event)
        else:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case SpeechStarted(turn, onset_ms):
                tell = self.settings.turn_detection is not None
                self._turns.started(turn, onset_ms, tell=tell)
            case SpeechStopped(turn, end_ms):
                self._turns.stopped(turn, end_ms)
            case Partial(turn, confirmed):
                if self.settings.transcription:
                    self._turns.partial(turn, confirmed)
            case TurnCommitted(turn, text):
                self._turns.committed(turn, text, tell=self.settings.transcription)
            case TurnReopened(turn):
                self._turns.reopened(turn)
            case CallerSilent(turn, start_ms, end_ms):
                self._turns.silent(turn, start_ms, end_ms)
            case CallFault(code, message):
                self.error(ProtocolError(code, message, kind="server_error"))
            case ReplyDone():
                self._reply_done(event)
            case _:
                self._responses.on_event(event)

    def _reply_done(self, event: ReplyDone) -> None:
        response = self._responses.of(event.reply)
        if response is None:
            return
        if event.status is not ReplyStatus.COMPLETED:
            self.line.drop(response.id)
            self._ahead = 0
            if self._guard is not None:
                self._guard.cut()
        self._responses.done(response, event)

    # ------------------------------------------------------------ from the client

    def receive(self, text: str | bytes, sender: Outbox | None = None) -> None:
        """One message. Whatever is wrong with it becomes an `error` event; nothing is raised."""
        to = sender or self.line.main
        try:
            event = ce.parse_client_event(text)
        except ProtocolError as error:
            self.error(error, ce.client_event_id(text), to)
            return
        try:
            self._do(event, to)
        except ProtocolError as error:
            self.error(error, event.event_id, to)
        except VoiceAgentError as error:
            self.error(ProtocolError(error.code, str(error.args[0])), event.event_id, to)
        except Exception:
            log.exception("a client event failed", extra={"event": event.type})
            fault = ProtocolError("VA300", "The server failed on this event.", kind="server_error")
            self.error(fault, event.event_id, to)

    def _do(self, event: ce.AnyClientEvent, to: Outbox) -> None:
        match event:
            case ce.AudioAppend():
                if not self._carries_audio:
                    raise ProtocolError(
                        "unsupported_event", "This call's audio comes over WebRTC, not in events."
                    )
                self._input.append(event.audio)
            case ce.SessionUpdate():
                self._update(event.session)
            case ce.AudioCommit():
                event_id = event.event_id
                self._input.mark(lambda: self._commit(event_id, to))
            case ce.AudioClear():
                self._input.clear()
                self.call.client.clear_audio()
                self._emit("input_audio_buffer.cleared")
            case ce.OutputClear():
                self._responses.clear_output()
            case ce.ItemCreate():
                self._history.create(event)
            case ce.ItemDelete():
                self._history.delete(event.item_id, in_progress=self._responses.active)
            case ce.ItemRetrieve():
                item = self._conversation.get(event.item_id)
                self._emit("conversation.item.retrieved", to=to, item=item.wire())
            case ce.ItemTruncate():
                self._responses.truncate(event)
            case ce.ResponseCreate():
                self._responses.create(event.response)
            case ce.ResponseCancel():
                self._responses.cancel(event.response_id)

    def _update(self, asked: ce.SessionSettings | ce.TranscriptionSettings) -> None:
        after = revise(self.settings, asked)
        check_update(self._grant, self.settings, after)
        self._apply(after)
        self.settings = after
        self._emit("session.updated", session=after.wire())

    def _apply(self, after: Settings) -> None:
        """Raises VoiceAgentError, and nothing changed, for what the call cannot do."""
        now, call, detection = self.settings, self.call, after.turn_detection
        call.client.update(
            instructions=after.instructions if after.instructions != now.instructions else None,
            voice=after.voice if after.voice != now.voice else None,
            speed=after.speed if after.speed != now.speed else None,
            max_output_tokens=_limit(after) if _limit(after) != _limit(now) else None,
            turn_taking=turn_taking(detection)
            if detection is not None and detection != now.turn_detection
            else None,
            aloud=after.modality == "audio" if after.modality != now.modality else None,
            tools=declarations(after.tools) if after.tools != now.tools else None,
            tool_choice=tool_choice(after.tool_choice)
            if after.tool_choice != now.tool_choice
            else None,
        )
        if after.input_format != now.input_format:
            self._input.set_format(after.input_format)
            if self._carries_audio:
                self._guard = self._make_guard(not isinstance(after.input_format, ce.PcmFormat))
        active = self._responses.active
        if after.output_format != now.output_format and active is not None:
            active.use_format(after.output_format)
        answers = detection is None or detection.create_response
        call.client.manual_turns = detection is None
        call.client.auto_response = answers and after.kind == "realtime"
        call.client.interruptible = detection is not None and detection.interrupt_response
        patience = detection.idle_timeout_ms if isinstance(detection, ce.ServerVad) else None
        call.client.idle_timeout_ms = patience
        self._input.fill_gaps = detection is not None

    def _commit(self, event_id: str | None, to: Outbox) -> None:
        if not self.call.client.commit_audio():
            self.error(
                ProtocolError(
                    "input_audio_buffer_commit_empty",
                    "Nothing to commit: append at least 100 ms of audio first (with turn "
                    "detection on, turns are committed for you).",
                ),
                event_id,
                to,
            )
