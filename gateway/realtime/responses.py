"""The responses of one session: asked for, begun, cut and ended in step with the replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.call_port import CallPort
from gateway.grant import Grant
from voice_agent.events import (
    Event,
    ReplyDone,
    ReplySounds,
    ReplyStarted,
    ReplyStatus,
    ReplyText,
    ToolStarted,
)
from voice_agent.playout import Tick
from voice_agent.types import ReplyId

from . import client_events as ce
from .errors import ProtocolError, unsupported
from .history import History
from .items import Conversation, Item
from .permits import check_response
from .plan import Plan, plan_of, reply_settings
from .response import Emit, Response
from .settings import Settings

KEPT = 16
UNLIMITED_TOKENS = 4096


class Responses:
    """Owns them, from `response.create` to `response.done`; the last can still be truncated."""

    def __init__(
        self,
        conversation: Conversation,
        emit: Emit,
        *,
        settings: Callable[[], Settings],
        rate_limits: Callable[[], list[dict[str, Any]]],
        sends_audio: bool,
    ) -> None:
        """settings: as the session has them now. sends_audio: in events."""
        self._conversation = conversation
        self._emit = emit
        self._settings = settings
        self._rate_limits = rate_limits
        self._sends_audio = sends_audio
        self._known: dict[ReplyId, Response] = {}
        self.active: Response | None = None
        self._plan: Plan | None = None  # of the response.create under way

    def attach(self, call: CallPort, history: History, grant: Grant) -> None:
        self._call, self._history, self._grant = call, history, grant

    def __len__(self) -> int:
        """Those that are known, at most `KEPT`."""
        return len(self._known)

    # ------------------------------------------------------------ from the call

    def on_event(self, event: Event) -> None:
        match event:
            case ReplyStarted(reply):
                self._started(reply)
            case ReplySounds(reply):
                self._sounds(reply)
            case ReplyText(reply, delta):
                if (response := self._known.get(reply)) is not None:
                    response.add_text(delta)
            case ToolStarted(reply, id_, name, arguments, True):
                if (response := self._known.get(reply)) is not None:
                    response.add_call(id_, name, arguments)
            case _:
                pass

    def sent(self, tick: Tick) -> Response | None:
        """A frame of a response left."""
        response = self._known.get(tick.reply) if tick.reply is not None else None
        if response is not None and tick.audible:
            response.add_audio(tick.pcm, tick.offset)
        return response

    def of(self, reply: ReplyId) -> Response | None:
        return self._known.get(reply)

    def _started(self, reply: ReplyId) -> None:
        plan, self._plan = self._plan, None
        response = Response(
            reply,
            plan or plan_of(self._settings()),
            self._conversation,
            self._emit,
            sends_audio=self._sends_audio,
        )
        self._known[reply] = response
        if not reply.aside:
            self.active = response
        if limits := self._rate_limits():
            self._emit("rate_limits.updated", rate_limits=limits)
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]

    def _sounds(self, reply: ReplyId) -> None:
        response = self._known.get(reply)
        if response is not None and response.speaks:
            response.sounded = True
            if not self._sends_audio:
                self._emit("output_audio_buffer.started", response_id=response.id)

    def done(self, response: Response, event: ReplyDone) -> None:
        if self.active is response:
            self.active = None
        response.finish(event)
        if response.sounded and not self._sends_audio:
            whole = event.status is ReplyStatus.COMPLETED
            what = "stopped" if whole else "cleared"
            self._emit(f"output_audio_buffer.{what}", response_id=response.id)
            if not whole:  # where its sound ended is known here only
                self._history.truncated(response, event.audio_ms)

    # ------------------------------------------------------------ from the client

    def create(self, asked: ce.ResponseSettings | None) -> None:
        """Raises ProtocolError, and VoiceAgentError for what the call cannot do."""
        settings = self._settings()
        if settings.kind == "transcription":
            raise ProtocolError("unsupported_event", "A transcription session answers nothing.")
        if asked is not None:
            check_response(self._grant, asked)
        plan = plan_of(settings, asked)
        wanted = reply_settings(plan, asked, self._conversation, UNLIMITED_TOKENS)
        if plan.aside and plan.modality == "audio" and not self._sends_audio:
            raise unsupported(
                "response.output_modalities",
                'Beside the conversation a WebRTC session gets text: send ["text"].',
            )
        self._plan = plan
        try:
            if plan.aside:
                self._call.client.aside(wanted)
            elif not self._call.client.respond(wanted):
                raise ProtocolError(
                    "conversation_already_has_active_response",
                    "A response is in progress: wait for response.done, or cancel it.",
                )
        except Exception:
            self._plan = None
            raise

    def cancel(self, response_id: str | None) -> None:
        """Raises ProtocolError."""
        found = [self.active] if self.active is not None else []
        if response_id is not None:
            found = [r for r in self._known.values() if r.id == response_id and not r.done]
        if not found:
            raise ProtocolError(
                "response_cancel_not_active", "There is no such response to cancel.",
                param="response_id" if response_id else None,
            )  # fmt: skip
        response = found[0]
        response.cancelled_by_client = True
        if response.reply.aside:
            self._call.client.cancel_aside(response.reply)
        else:
            self._call.client.cancel_reply()

    def clear_output(self) -> None:
        """Raises ProtocolError where sound goes through events."""
        if self._sends_audio:
            raise ProtocolError(
                "unsupported_event", "output_audio_buffer.clear belongs to WebRTC: "
                "send response.cancel.",
            )  # fmt: skip
        if self.active is not None and self.active.speaks:
            self.cancel(None)

    def truncate(self, event: ce.ItemTruncate) -> None:
        """Raises ProtocolError, and VoiceAgentError for what the call cannot cut."""
        item, at_ms = self._conversation.get(event.item_id), event.audio_end_ms
        response = next((r for r in self._known.values() if r.item is item), None)
        if not isinstance(item, Item) or response is None:
            raise ProtocolError(
                "invalid_value", "Only a spoken reply of ours can be truncated.", param="item_id"
            )
        if event.content_index != 0:
            raise ProtocolError("invalid_value", "content_index must be 0.", param="content_index")
        if self._sends_audio and at_ms > response.sent_ms:
            raise ProtocolError(
                "invalid_value",
                f"audio_end_ms {at_ms} is past the {response.sent_ms} ms sent.",
                param="audio_end_ms",
            )
        self._call.client.truncate(
            response.reply, response.reply_ms_at(at_ms) if self._sends_audio else at_ms
        )
        self._history.truncated(response, at_ms)
