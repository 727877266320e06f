"""Keys of a telephone, in the caller's words."""

from __future__ import annotations


def keys_pressed(keys: str) -> str:
    """A message for the history: "I pressed 1 2 3." """
    return f"I pressed {' '.join(keys)}."
