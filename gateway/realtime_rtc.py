"""A Realtime session on a WebRTC call's data channel: events as texts, sound past them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from voice_agent.events import Event

from .call_port import CallPort
from .gateway import Gateway, LiveCall
from .grant import Grant
from .realtime.client_events import parse_session
from .realtime.permits import check_update
from .realtime.session import RealtimeSession
from .realtime.settings import Settings, revise
from .rtc_side import DIED, Tell

EARLY_TEXTS = 64
"""Texts that may come before the media flows; of more, the last ones are lost."""


class RealtimeSide:
    """One session; `gateway.rtc_side.RtcSide`."""

    channel = "oai-events"
    resumes = False
    last_words = (
        json.dumps(
            {
                "type": "error",
                "event_id": "event_last",
                "error": {
                    "type": "server_error",
                    "code": "VA494",
                    "message": DIED,
                    "param": None,
                    "event_id": None,
                },
            }
        ),
    )

    def __init__(
        self,
        gateway: Gateway,
        grant: Grant,
        agent: str | None,
        model: str,
        session: dict[str, Any] | None,
    ) -> None:
        """session: as the call was asked for. Raises ProtocolError for one that cannot be."""
        if session is not None:
            now = Settings(session_id="", model=model)
            check_update(grant, now, revise(now, parse_session(session)))
        self._gateway = gateway
        self._agent = agent
        self._asked = session
        self._early: deque[str] = deque(maxlen=EARLY_TEXTS)
        self._tell: Tell = lambda text: None
        self._begun = False
        self._live: LiveCall | None = None
        self._session = RealtimeSession(
            self,
            model,
            lead_ms=0,
            grant=grant,
            carries_audio=False,
            on_error=lambda code: gateway.metrics.protocol_errors.labels(code).inc(),
            rate_limits=lambda: gateway.rate_limits(grant),
        )
        self._grant = grant
        self.call_id: str | None = None

    def admitted(self, live: LiveCall) -> None:
        live.grant = self._grant
        self.call_id, self._live = live.id, live

    def begin(self, tell: Tell, leave: Callable[[], None]) -> CallPort:
        self._tell = tell
        call = self._gateway.stack.open_call(self._agent, self.on_event, 0)
        self._session.attach(call, self._asked)
        self._begun = True
        if self._live is not None:
            self._live.session = self._session
        while self._early:
            self._session.receive(self._early.popleft())
        return call

    def receive(self, text: str) -> None:
        if self._begun:
            self._session.receive(text)
        else:
            self._early.append(text)

    def on_event(self, event: Event) -> None:
        self._gateway.observe(event)
        self._session.on_event(event)

    # ------------------------------------------------------------ the session's outbox

    def put(self, text: str, key: str | None = None) -> None:
        self._tell(text)

    def drop(self, key: str) -> None:
        """No sound goes this way."""
