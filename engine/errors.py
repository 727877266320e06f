"""Errors of the engine: the caller's mistake, no room, an unusable model, or our own bug."""

from __future__ import annotations


class EngineError(Exception):
    """Base, and our own bug when raised itself."""


class UsageError(EngineError):
    """The request can't be served as asked; the message says what to change."""


class CapacityError(EngineError):
    """No room now; the same request may succeed later."""


class ModelError(EngineError):
    """A model file is missing, corrupt or of a kind that is not supported."""
