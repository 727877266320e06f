"""What a voice promises: clauses in, pieces of 24 kHz sound with word times out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from voice_agent.types import Pcm16


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One word as the voice says it. source: [start, end) characters in the *reply's* text.

    Several spoken words may share one source span ("$5" is said "five dollars").
    """

    text: str
    source: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Clause:
    """A speakable piece of a reply.

    text: as the model wrote it; span: its [start, end) characters in the reply's text (spans of
    consecutive clauses tile the reply). words: what the ear gets; empty when there is nothing to
    say (emoji, bare punctuation), and then no audio is made. pause_ms: silence after the clause.
    """

    index: int
    text: str
    span: tuple[int, int]
    words: tuple[SpokenWord, ...]
    pause_ms: int = 0

    @property
    def spoken(self) -> str:
        return " ".join(w.text for w in self.words)


@dataclass(frozen=True, slots=True)
class WordTime:
    """Word `index` of the clause sounds in samples [start, end) of the clause's audio (24 kHz)."""

    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AudioPiece:
    """A consecutive piece of one clause's audio. pcm: int16 [n], 24 kHz. last: the clause is whole.

    words: those whose start lies in this piece; a voice that knows no times (`exact_times` false)
    leaves them empty, and they are estimated from the sound's length (tts/estimate.py), each with
    the piece that its end lies in.
    """

    pcm: Pcm16
    words: tuple[WordTime, ...]
    last: bool


class Voice(Protocol):
    """A loaded voice. Blocking; called on the voice worker's thread only."""

    name: str
    exact_times: bool

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        """Leading silence is trimmed. Stops between pieces once `cancelled()` is true.

        Raises voice_agent.errors.InternalError when the model yields no audio for spoken words.
        """
        ...

    def warm(self) -> None: ...


@runtime_checkable
class Styled(Protocol):
    """A voice model with several speakers that share its weights."""

    @property
    def style_names(self) -> list[str]: ...

    def styled(self, style: str) -> Voice:
        """Raises UsageError listing the names."""
        ...
