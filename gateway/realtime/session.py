"""One Realtime session: client events in, the call's events and audio out, in the protocol's order.

Knows neither sockets nor time: `receive` gets a message, `on_event` a call's event, `tick` one
20 ms step of the process's clock, and everything for the client goes to `outbox`.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from gateway.call_port import CallPort
from gateway.media.echo import EchoGuard
from voice_agent.errors import VoiceAgentError
from voice_agent.events import (
    CallFault,
    Event,
    Partial,
    ReplyDone,
    ReplyStarted,
    ReplyStatus,
    ReplyText,
    SpeechStarted,
    SpeechStopped,
    TurnCommitted,
    TurnReopened,
)
from voice_agent.types import FRAME_MS, Frame, ReplyId

from . import client_events as ce
from .audio_in import AudioInput
from .errors import ProtocolError, unsupported
from .items import Conversation, Item, new_id
from .response import Response
from .settings import Settings, check_response, revise
from .turn_detection import turn_taking
from .turns import Turns

log = logging.getLogger(__name__)

KEPT_RESPONSES = 16
UNLIMITED_TOKENS = 4096


class Outbox(Protocol):
    """Where messages wait for the socket. key: lets late audio of a cut response be dropped."""

    def put(self, text: str, key: str | None = None) -> None: ...

    def drop(self, key: str) -> None: ...


def _limit(settings: Settings) -> int:
    return settings.max_output_tokens or UNLIMITED_TOKENS


class RealtimeSession:
    """Owns the protocol state of one connection."""

    def __init__(
        self,
        outbox: Outbox,
        model: str,
        *,
        lead_ms: int,
        on_error: Callable[[str], None] = lambda code: None,
        on_frame: Callable[[Frame], None] = lambda frame: None,
        guard: Callable[[bool], EchoGuard | None] = lambda telephone: None,
    ) -> None:
        """guard: makes the defence against our own echo for a line that is (not) a telephone's."""
        self._outbox = outbox
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
        self._responses: dict[ReplyId, Response] = {}
        self._active: Response | None = None
        self._metadata: dict[str, str] | None = None  # of the response.create under way
        self._turns = Turns(self._conversation, self._emit)
        self._pulling = False
        self._deferred: deque[Event] = deque()  # raised while a frame was being pulled

    def attach(self, call: CallPort) -> None:
        """Say hello: the first message of every session is `session.created`."""
        self._call = call
        self._guard = self._make_guard(False)
        self._emit("session.created", session=self.settings.wire())

    @property
    def call(self) -> CallPort:
        assert self._call is not None
        return self._call

    # ------------------------------------------------------------ to the client

    def _emit(self, type_: str, **fields: Any) -> None:
        event = {"type": type_, "event_id": new_id("event"), **fields}
        key = event["response_id"] if type_ == "response.output_audio.delta" else None
        self._outbox.put(json.dumps(event, ensure_ascii=False, separators=(",", ":")), key)

    def error(self, error: ProtocolError, event_id: str | None = None) -> None:
        self._on_error(error.code)
        self._emit(
            "error",
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
        """20 ms: hear what waits, then send what the client will need next.

        A reply is sent `lead_ms` ahead of its playing, so that a late packet makes no hole.
        """
        self._input.tick()
        self._ahead = max(0, self._ahead - 1)
        while True:
            self._pulling = True
            try:
                frame = self.call.tick()
            finally:
                self._pulling = False
            if frame.audible and frame.reply is not None:
                self._ahead += 1
                if (response := self._responses.get(frame.reply)) is not None:
                    response.add_audio(frame.pcm, frame.offset)
                    if self._guard is not None and response.speaks:
                        self._guard.sent(frame.pcm)
            while self._deferred:
                self._handle(self._deferred.popleft())
            if not frame.audible or self._ahead > self._lead_frames:
                break
        if self._guard is not None:
            self._guard.tick()

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
                tell = self.settings.transcription
                self._turns.committed(turn, text, tell=tell, heard_ms=self._input.heard_ms)
            case TurnReopened(turn):
                self._turns.reopened(turn)
            case ReplyStarted(reply):
                self._reply_started(reply)
            case ReplyText(reply, delta):
                if (response := self._responses.get(reply)) is not None:
                    response.add_text(delta)
            case ReplyDone():
                self._reply_done(event)
            case CallFault(code, message):
                self.error(ProtocolError(code, message, kind="server_error"))
            case _:
                pass

    def _reply_started(self, reply: ReplyId) -> None:
        metadata, self._metadata = self._metadata, None
        response = Response(reply, self.settings, self._conversation, self._emit, metadata)
        self._responses[reply] = self._active = response
        if len(self._responses) > KEPT_RESPONSES:
            del self._responses[next(iter(self._responses))]

    def _reply_done(self, event: ReplyDone) -> None:
        response = self._responses.get(event.reply)
        if response is None:
            return
        if event.status is not ReplyStatus.COMPLETED:
            self._outbox.drop(response.id)
            self._ahead = 0
            if self._guard is not None:
                self._guard.cut()
        response.finish(event)
        if self._active is response:
            self._active = None

    # ------------------------------------------------------------ from the client

    def receive(self, text: str | bytes) -> None:
        """One message. Whatever is wrong with it becomes an `error` event; nothing is raised."""
        try:
            event = ce.parse_client_event(text)
        except ProtocolError as error:
            self.error(error, ce.client_event_id(text))
            return
        try:
            self._do(event)
        except ProtocolError as error:
            self.error(error, event.event_id)
        except VoiceAgentError as error:
            self.error(ProtocolError(error.code, str(error.args[0])), event.event_id)
        except Exception:
            log.exception("a client event failed", extra={"event": event.type})
            fault = ProtocolError("VA300", "The server failed on this event.", kind="server_error")
            self.error(fault, event.event_id)

    def _do(self, event: ce.AnyClientEvent) -> None:
        match event:
            case ce.AudioAppend():
                self._input.append(event.audio)
            case ce.SessionUpdate():
                self._update(event.session)
            case ce.AudioCommit():
                event_id = event.event_id
                self._input.mark(lambda: self._commit(event_id))
            case ce.AudioClear():
                self._input.clear()
                self.call.clear_audio()
                self._emit("input_audio_buffer.cleared")
            case ce.OutputClear():
                raise ProtocolError(
                    "unsupported_event", "output_audio_buffer.clear belongs to WebRTC: "
                    "send response.cancel.",
                )  # fmt: skip
            case ce.ItemCreate():
                self._create_item(event)
            case ce.ItemDelete():
                self._conversation.get(event.item_id)
                raise ProtocolError(
                    "unsupported_event", "Items of the history can't be deleted.", param="item_id"
                )
            case ce.ItemRetrieve():
                item = self._conversation.get(event.item_id)
                self._emit("conversation.item.retrieved", item=item.wire())
            case ce.ItemTruncate():
                self._truncate(event)
            case ce.ResponseCreate():
                self._create_response(event.response)
            case ce.ResponseCancel():
                self._cancel_response(event.response_id)

    def _update(self, asked: ce.SessionSettings) -> None:
        now = self.settings
        after = revise(now, asked, audio_flowing=self._active is not None)
        call = self.call
        detection = after.turn_detection
        call.update(
            instructions=after.instructions if after.instructions != now.instructions else None,
            voice=after.voice if after.voice != now.voice else None,
            speed=after.speed if after.speed != now.speed else None,
            max_output_tokens=_limit(after) if _limit(after) != _limit(now) else None,
            turn_taking=turn_taking(detection)
            if detection is not None and detection != now.turn_detection
            else None,
        )
        if after.input_format != now.input_format:
            self._input.set_format(after.input_format)
            self._guard = self._make_guard(not isinstance(after.input_format, ce.PcmFormat))
        call.manual_turns = detection is None
        call.auto_response = detection is None or detection.create_response
        call.interruptible = detection is None or detection.interrupt_response
        self._input.fill_gaps = detection is not None
        self.settings = after
        self._emit("session.updated", session=after.wire())

    def _commit(self, event_id: str | None) -> None:
        if not self.call.commit_audio():
            self.error(
                ProtocolError(
                    "input_audio_buffer_commit_empty",
                    "Nothing to commit: append at least 100 ms of audio first (with turn "
                    "detection on, turns are committed for you).",
                ),
                event_id,
            )

    def _create_item(self, event: ce.ItemCreate) -> None:
        asked = event.item
        if not isinstance(asked, ce.MessageItem):
            raise unsupported("item.type", f"Items of type {asked.type} are not supported.")
        texts = [part.text for part in asked.content]
        if any(part.type not in ("input_text", "output_text", "text") for part in asked.content):
            raise unsupported(
                "item.content", "Only text can be added; send audio by input_audio_buffer.append."
            )
        text = "\n".join(t for t in texts if t)
        if not text.strip():
            raise ProtocolError("invalid_value", "The item holds no text.", param="item.content")
        if event.previous_item_id not in (None, self._conversation.last_id):
            raise unsupported("previous_item_id", "Items can be added at the end only.")
        if asked.id is not None and asked.id in self._conversation:
            raise ProtocolError(
                "item_already_exists", f"There already is an item {asked.id!r}.", param="item.id"
            )
        self.call.add_message(asked.role, text)
        kind = "output_text" if asked.role == "assistant" else "input_text"
        item = Item(asked.role, [{"type": kind, "text": text}], id=asked.id or new_id("item"))
        previous = self._conversation.add(item)
        for name in ("added", "done"):
            self._emit(f"conversation.item.{name}", item=item.wire(), previous_item_id=previous)

    def _truncate(self, event: ce.ItemTruncate) -> None:
        item = self._conversation.get(event.item_id)
        response = next((r for r in self._responses.values() if r.item.id == item.id), None)
        if item.role != "assistant" or response is None:
            raise ProtocolError(
                "invalid_value", "Only a spoken reply of ours can be truncated.", param="item_id"
            )
        if event.content_index != 0:
            raise ProtocolError("invalid_value", "content_index must be 0.", param="content_index")
        if event.audio_end_ms > response.sent_ms:
            raise ProtocolError(
                "invalid_value",
                f"audio_end_ms {event.audio_end_ms} is past the {response.sent_ms} ms sent.",
                param="audio_end_ms",
            )
        self.call.truncate(response.reply, response.reply_ms_at(event.audio_end_ms))
        for part in item.content:
            part.pop("transcript", None)
        self._emit(
            "conversation.item.truncated",
            item_id=item.id,
            content_index=0,
            audio_end_ms=event.audio_end_ms,
        )

    def _create_response(self, asked: ce.ResponseSettings | None) -> None:
        instructions = None
        metadata = None
        if asked is not None:
            instructions, metadata = asked.instructions, asked.metadata
            check_response(asked, self.settings)
        self._metadata = metadata
        if not self.call.respond(instructions):
            self._metadata = None
            raise ProtocolError(
                "conversation_already_has_active_response",
                "A response is in progress: wait for response.done, or cancel it.",
            )

    def _cancel_response(self, response_id: str | None) -> None:
        active = self._active
        if active is None or response_id not in (None, active.id):
            raise ProtocolError(
                "response_cancel_not_active", "There is no such response to cancel.",
                param="response_id" if response_id else None,
            )  # fmt: skip
        active.cancelled_by_client = True
        self.call.cancel_reply()
