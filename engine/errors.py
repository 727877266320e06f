"""The engine's errors: the caller's mistake, no room, our bug, an unusable model."""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error the engine raises on purpose."""


class UsageError(EngineError):
    """The caller can fix it: an empty or too long prompt, an illegal option, a closed engine."""


class CapacityError(EngineError):
    """No room now (try later), or never with this KV cache (the message says which)."""


class NeverFitsError(CapacityError):
    """This KV cache could not hold the request even alone: trying again does not help."""


class InternalError(EngineError):
    """A part of the engine broke; the request it names has ended."""


class ModelError(EngineError):
    """The model's files are missing, damaged, or need something this engine does not have."""
