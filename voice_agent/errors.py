"""Errors a person sees, each with a stable code explained in docs/ERRORS.md.

Three kinds, as in every package of ours: the caller's or operator's mistake (`UsageError`), no room
(`CapacityError`), our own bug or a broken part (`InternalError`).
"""

from __future__ import annotations


class VoiceAgentError(Exception):
    """Base: a stable code, and a message that says what to do."""

    code = "VA000"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"


class UsageError(VoiceAgentError):
    """The caller or the operator can fix it."""

    code = "VA100"


class CapacityError(VoiceAgentError):
    """No room now; try later or elsewhere."""

    code = "VA200"


class InternalError(VoiceAgentError):
    """A part of ours broke."""

    code = "VA300"
