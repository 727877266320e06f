"""What the holder of a key or token may change in a session."""

from __future__ import annotations

from gateway.grant import Change, Grant

from .client_events import ResponseSettings
from .errors import ProtocolError
from .settings import Settings

_FIELDS = (
    (Change.INSTRUCTIONS, ("instructions",), "session.instructions"),
    (Change.TOOLS, ("tools", "tool_choice"), "session.tools"),
    (Change.VOICE, ("voice", "speed"), "session.audio.output.voice"),
    (Change.TURNS, ("turn_detection", "kind"), "session.audio.input.turn_detection"),
    (Change.LIMITS, ("max_output_tokens",), "session.max_output_tokens"),
    (Change.MODALITY, ("modality",), "session.output_modalities"),
)


def check(grant: Grant, change: Change, param: str) -> None:
    """Raises ProtocolError."""
    if not grant.may_change(change):
        raise ProtocolError(
            "not_allowed",
            f"This key or token may not change {change.value}: leave {param} out.",
            param=param,
        )


def check_update(grant: Grant, now: Settings, after: Settings) -> None:
    """Raises ProtocolError; saying again what is so already is no change."""
    for change, fields, param in _FIELDS:
        if any(getattr(now, name) != getattr(after, name) for name in fields):
            check(grant, change, param)


def check_response(grant: Grant, asked: ResponseSettings) -> None:
    """Raises ProtocolError."""
    for change, given, param in (
        (Change.INSTRUCTIONS, asked.instructions is not None, "response.instructions"),
        (Change.INSTRUCTIONS, asked.input is not None, "response.input"),
        (Change.TOOLS, asked.tools is not None, "response.tools"),
        (Change.TOOLS, asked.tool_choice not in (None, "auto"), "response.tool_choice"),
        (Change.VOICE, asked.audio is not None, "response.audio"),
        (Change.LIMITS, asked.max_output_tokens is not None, "response.max_output_tokens"),
        (Change.MODALITY, asked.output_modalities is not None, "response.output_modalities"),
    ):
        if given:
            check(grant, change, param)
