"""What speaks on a WebRTC call's data channel: the page's small events, or a Realtime session.

Texts in and texts out: the transport knows neither protocol, and the protocol no transport.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from voice_agent.errors import UsageError
from voice_agent.events import CallFault, EndReason, Event

from .call_port import CallPort
from .gateway import Gateway, LiveCall
from .page_events import behind_ms, page_event

Tell = Callable[[str], None]
"""A text for the data channel; before that is open, texts wait."""
DIED = "The server failed; please call again."
MAX_TEXT = 1000
"""Characters of a message that the caller types; the page takes no more."""


class RtcSide(Protocol):
    """One per call: `admitted`, `begin` once the media flows, then `receive` for every text."""

    channel: str
    """The data channel's label."""
    resumes: bool
    """Whether the client knows how to come back to a call whose line was lost."""

    @property
    def last_words(self) -> Sequence[str]:
        """What a media worker tells the client when this process has died."""
        ...

    def admitted(self, live: LiveCall) -> None:
        """The call has its line."""
        ...

    def begin(self, tell: Tell, leave: Callable[[], None]) -> CallPort:
        """Opens the call. leave: the client hangs up. Raises VoiceAgentError."""
        ...

    def receive(self, text: str) -> None:
        """Whatever it is, nothing is raised."""
        ...

    def on_event(self, event: Event) -> None:
        """Of the call, or of the transport."""
        ...


class PageSide:
    """The page of this server."""

    channel = "events"
    resumes = True
    last_words = (
        json.dumps({"type": "error", "code": "VA494", "message": DIED, "fatal": True}),
        json.dumps({"type": "ended", "reason": EndReason.SERVER_ERROR.value}),
    )

    def __init__(
        self,
        gateway: Gateway,
        agent: str | None,
        lead_ms: int = 0,
    ) -> None:
        """lead_ms: so far ahead of its playing is our sound sent."""
        self._gateway = gateway
        self._agent = agent
        self._lead_ms = lead_ms
        self._call: CallPort | None = None
        self._tell: Tell = lambda text: None
        self._leave: Callable[[], None] = lambda: None

    def admitted(self, live: LiveCall) -> None:
        """Nothing is needed of it."""

    def begin(self, tell: Tell, leave: Callable[[], None]) -> CallPort:
        self._tell, self._leave = tell, leave
        self._call = self._gateway.stack.open_call(self._agent, self.on_event, self._lead_ms)
        return self._call

    def on_event(self, event: Event) -> None:
        self._gateway.observe(event)
        if (data := page_event(event)) is not None:
            self._tell(json.dumps(data, ensure_ascii=False, separators=(",", ":")))

    def receive(self, text: str) -> None:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(data, dict) or self._call is None:
            return
        match data:
            case {"type": "hangup"}:
                self._leave()
            case {"type": "mute", "on": bool(on)}:
                self._call.client.mute(on)
            case {"type": "text", "text": str(text)} if text.strip():
                self._written(self._call, text.strip())
            case _ if (ms := behind_ms(data)) is not None:
                self._call.playing_behind(ms)

    def _written(self, call: CallPort, text: str) -> None:
        """Who writes interrupts as who speaks, and is answered aloud."""
        call.client.cancel_reply()
        try:
            call.client.add_message("user", text[:MAX_TEXT])
            call.client.respond()
        except UsageError as error:
            self.on_event(CallFault(error.code, str(error.args[0])))
