"""Keys of a telephone and silence, in the caller's words."""

from __future__ import annotations

SAYS_NOTHING = "..."
"""A message for the history: the caller was waited for in vain."""


def keys_pressed(keys: str) -> str:
    """A message for the history: "I pressed 1 2 3." """
    return f"I pressed {' '.join(keys)}."
