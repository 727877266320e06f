"""What one's own models look like: three small Protocols, in plain sound and text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from voice_agent.types import Pcm16, PcmF32


class Recognizer(Protocol):
    """Speech to text. Calls share it; every caller's utterance comes again as it grows."""

    async def transcribe(self, sound: PcmF32) -> str:
        """sound: the utterance up to now, float32 [n], mono, 16 kHz. Empty text: nothing was said.

        Several calls may wait at once. What it raises is told to the caller as a failed turn.
        """
        ...


class Voice(Protocol):
    """Text to speech, on a thread of its own, one clause at a time."""

    sample_rate: int
    """Of its sound, in Hz; any."""

    def speak(self, text: str) -> Iterable[Pcm16]:
        """The clause's sound in pieces, int16 [n] each, mono. text: as it is to be said, with
        numbers and the like in words."""
        ...


class Thinker(Protocol):
    """The language model."""

    def reply(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> AsyncIterator[str]:
        """The next reply, in pieces as they are made. Cancelled when the caller cuts in.

        messages, tools: as in OpenAI's chat requests. A tool is called by writing
        `<tool_call>{"name": "...", "arguments": {...}}</tool_call>`.
        """
        ...
