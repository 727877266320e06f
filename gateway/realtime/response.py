"""One response on the wire: from `response.created` to `response.done`, in the protocol's order."""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np

from gateway.media import g711
from gateway.media.resample import Resampler
from voice_agent.events import ReplyDone, ReplyStatus
from voice_agent.types import OUT_RATE, Pcm16, ReplyId

from .client_events import AlawFormat, PcmFormat
from .items import AnyItem, Call, Conversation, Item, new_id
from .plan import Plan
from .settings import Format

Emit = Callable[..., None]
"""emit(type, **fields): one server event."""


class _Encoder:
    """24 kHz frames to base64 text of an output format."""

    def __init__(self, fmt: Format) -> None:
        self.format = fmt
        self._resampler = Resampler(OUT_RATE, g711.RATE)

    def __call__(self, pcm: Pcm16) -> str:
        if isinstance(self.format, PcmFormat):
            data = pcm.astype("<i2", copy=False).tobytes()
        else:
            low = self._resampler.push(pcm)
            data = (
                g711.encode_alaw(low)
                if isinstance(self.format, AlawFormat)
                else g711.encode_ulaw(low)
            )
        return base64.b64encode(data).decode("ascii")


class Response:
    """Owns the wire state of one reply. After `finish` it still answers where audio was cut."""

    def __init__(
        self,
        reply: ReplyId,
        plan: Plan,
        conversation: Conversation,
        emit: Emit,
        *,
        sends_audio: bool = True,
    ) -> None:
        """sends_audio: in events; else it goes another way, and only its place is counted."""
        self.id = new_id("resp")
        self.reply = reply
        self.item = Item("assistant", [], status="in_progress", key=reply)
        self.done = False
        self.cancelled_by_client = False
        self.sounded = False
        self.text = ""
        self._plan = plan
        self._conversation = conversation
        self._emit = emit
        self._sends_audio = sends_audio
        self._encode = _Encoder(plan.output_format)
        self._outputs: list[AnyItem] = []
        self._index: int | None = None  # of the message among the outputs
        self._previous: str | None = None  # id of the item before it
        self._sent = 0  # samples at 24 kHz, on the client's own axis
        self._starts: list[int] = []  # client axis ...
        self._offsets: list[int] = []  # ... and the reply's sample sent there
        self._emit("response.created", response=self.wire("in_progress"))

    @property
    def sent_ms(self) -> int:
        return self._sent * 1000 // OUT_RATE

    @property
    def _place(self) -> dict[str, Any]:
        return {
            "response_id": self.id,
            "item_id": self.item.id,
            "output_index": self._index,
            "content_index": 0,
        }

    def wire(self, status: str, **more: Any) -> dict[str, Any]:
        plan = self._plan
        output: dict[str, Any] = {"format": self._encode.format.model_dump(exclude_none=True)}
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": None,
            "output": [item.wire() for item in self._outputs],
            "conversation_id": None if plan.aside else self._conversation.id,
            "output_modalities": [plan.modality],
            "max_output_tokens": plan.max_output_tokens or "inf",
            "audio": {"output": output | {"voice": plan.voice}},
            "metadata": plan.metadata,
            "usage": None,
            **more,
        }

    def use_format(self, fmt: Format) -> None:
        """The rest of its audio has this format: the client knows by `session.updated`."""
        self._encode = _Encoder(fmt)

    # ------------------------------------------------------------ outputs

    def _add_output(self, item: AnyItem) -> int:
        self._outputs.append(item)
        index = len(self._outputs) - 1
        place = {"response_id": self.id, "output_index": index}
        self._emit("response.output_item.added", **place, item=item.wire())
        if not self._plan.aside:
            self._previous = self._conversation.add(item)
            self._emit("conversation.item.added", previous_item_id=self._previous, item=item.wire())
        return index

    def _output_done(self, item: AnyItem, index: int, previous: str | None) -> None:
        if not self._plan.aside:
            self._emit("conversation.item.done", previous_item_id=previous, item=item.wire())
        place = {"response_id": self.id, "output_index": index}
        self._emit("response.output_item.done", **place, item=item.wire())

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """The model asks for a tool of the client's."""
        if self.done:
            return
        kept = self._previous
        item = Call(call_id, name, "", status="in_progress")
        index = self._add_output(item)
        previous, self._previous = self._previous, kept
        place = {"response_id": self.id, "item_id": item.id, "output_index": index}
        told = {**place, "call_id": call_id}
        self._emit("response.function_call_arguments.delta", **told, delta=arguments)
        self._emit("response.function_call_arguments.done", **told, name=name, arguments=arguments)
        item.arguments, item.status = arguments, "completed"
        self._output_done(item, index, previous)

    def _begin_item(self) -> None:
        if self._index is None:
            self._index = self._add_output(self.item)
            self._emit("response.content_part.added", **self._place, part=self._part(""))

    def _part(self, text: str) -> dict[str, Any]:
        if self._plan.modality == "text":
            return {"type": "text", "text": text}
        return {"type": "audio", "transcript": text}

    def add_text(self, delta: str) -> None:
        if self.done or not delta:
            return
        self._begin_item()
        self.text += delta
        kind = "text" if self._plan.modality == "text" else "audio_transcript"
        self._emit(f"response.output_{kind}.delta", **self._place, delta=delta)

    @property
    def speaks(self) -> bool:
        """Its audio is sent."""
        return not self.done and self._plan.modality == "audio"

    def add_audio(self, pcm: Pcm16, offset: int) -> None:
        """One frame; offset: the reply's own sample position of its first sample."""
        if not self.speaks:
            return
        self._begin_item()
        if not self._starts or offset != self._offsets[-1] + self._sent - self._starts[-1]:
            self._starts.append(self._sent)
            self._offsets.append(offset)
        self._sent += len(pcm)
        if self._sends_audio:
            self._emit("response.output_audio.delta", **self._place, delta=self._encode(pcm))

    def reply_ms_at(self, client_ms: int) -> int:
        """Position in the reply's audio of what the client calls `client_ms`."""
        if not self._starts:
            return 0
        at = client_ms * OUT_RATE // 1000
        i = max(0, bisect_right(self._starts, at) - 1)
        return (self._offsets[i] + at - self._starts[i]) * 1000 // OUT_RATE

    def heard(self, text: str) -> None:
        """No more than this of it was heard: the item says so from now on."""
        for part in self.item.content:
            part["transcript"] = text

    # ------------------------------------------------------------ the end

    def finish(self, event: ReplyDone) -> None:
        """Close what was opened, then `response.done`. A second call does nothing."""
        if self.done:
            return
        if self._index is not None:
            self._close_item(event)
        self.done = True
        status, details = self._outcome(event)
        usage = {
            "input_tokens": event.input_tokens,
            "output_tokens": event.output_tokens,
            "total_tokens": event.input_tokens + event.output_tokens,
            "input_token_details": {
                "text_tokens": event.input_tokens,
                "audio_tokens": 0,
                "cached_tokens": event.cached_tokens,
            },
            "output_token_details": {"text_tokens": event.output_tokens, "audio_tokens": 0},
        }
        self._emit("response.done", response=self.wire(status, status_details=details, usage=usage))

    def _close_item(self, event: ReplyDone) -> None:
        status, _ = self._outcome(event)
        self.item.status = "completed" if status == "completed" else "incomplete"
        kind = "output_text" if self._plan.modality == "text" else "output_audio"
        key = "text" if kind == "output_text" else "transcript"
        self.item.content = [{"type": kind, key: self.text}]
        if kind == "output_text":
            self._emit("response.output_text.done", **self._place, text=self.text)
        else:
            self._close_audio(status)
            self._emit("response.output_audio_transcript.done", **self._place, transcript=self.text)
        self._emit("response.content_part.done", **self._place, part=self._part(self.text))
        # the history keeps what was heard; the item on the wire, until truncated, what was sent
        assert self._index is not None
        self._output_done(self.item, self._index, self._previous)

    def _close_audio(self, status: str) -> None:
        whole = status != "cancelled" and self._sends_audio and self._sent
        if whole and not isinstance(self._encode.format, PcmFormat):
            tail = np.zeros(OUT_RATE // 100, np.int16)  # pushes the filter's last millisecond
            self._emit("response.output_audio.delta", **self._place, delta=self._encode(tail))
        self._emit("response.output_audio.done", **self._place)

    def _outcome(self, event: ReplyDone) -> tuple[str, dict[str, Any] | None]:
        if event.status is ReplyStatus.COMPLETED:
            if event.finish != "length":
                return "completed", None
            return "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
        if event.status is ReplyStatus.FAILED:
            error = {"type": "server_error", "code": "response_failed"}
            return "failed", {"type": "failed", "error": error}
        by_caller = event.status is ReplyStatus.INTERRUPTED and not self.cancelled_by_client
        reason = "turn_detected" if by_caller else "client_cancelled"
        return "cancelled", {"type": "cancelled", "reason": reason}
