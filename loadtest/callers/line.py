"""What a caller needs of a transport."""

from __future__ import annotations

from typing import Protocol

from .clip import Pcm
from .ear import Ear


class Refused(Exception):
    """The server has no room, and said so."""


class LineError(Exception):
    """No server, or a call that failed; the text says how."""


class Line(Protocol):
    """One call. What comes back goes to the ear that `open` was given."""

    @property
    def lost(self) -> str:
        """Why the other side ended the call; empty while it is up."""
        ...

    async def open(self, ear: Ear, hold_s: float) -> None:
        """Returns once the call is up. hold_s: it is meant to last so long at most.

        Raises Refused, LineError.
        """
        ...

    async def send(self, frame: Pcm) -> None:
        """20 ms of the caller, int16 [480] at 24 kHz. Does nothing once the line is lost."""
        ...

    async def close(self) -> None:
        """Hangs up. Idempotent; does not raise."""
        ...
