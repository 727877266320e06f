"""The `[load]` section: whom the server still takes, and what it gives up under load."""

from __future__ import annotations

from pydantic import Field

from .server_section import Section

TARGETS = 4.0
"""Of the target, the predicted answer past which a new call waits, where nothing else is set."""


class LoadConfig(Section):
    """Callers beyond the first; the first one is always taken."""

    admit_ms: int = Field(default=0, ge=0)
    """Predicted answer past which a new call waits or is refused; 0: four times the target."""
    waiting: int = Field(default=8, ge=0)
    """Web callers that may wait for a line; 0: they are refused like others."""
    shorten_replies: bool = False
    """Whether replies may end after a sentence or two, as the last thing that load takes."""
