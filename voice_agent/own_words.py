"""Our own words in the caller's mouth: an echo that was transcribed is not what the caller said.

Pure. The second line behind `gateway/media/echo.py`: it works on any transport, needs no delay, and
looks only at words that our voice said while (or just before) the transcribed sound came in.
"""

from __future__ import annotations

import re
from collections import deque
from difflib import SequenceMatcher
from enum import StrEnum

from .speakable import speak_words

KEPT = 256  # pieces of text, each about a word
BEFORE_S = 1.0  # an echo is at most this late
ALIKE = 0.75  # of the letters, in order, in pieces of at least 3
PIECE = 3
MIN_LETTERS = 5  # "no" and "stop" are never an echo
_LETTERS = re.compile(r"[^a-z0-9 ]+")


class Echo(StrEnum):
    """What is known of a line: whether it sends our own voice back."""

    UNKNOWN = "unknown"
    NONE = "none"
    FOUND = "found"


class Own(StrEnum):
    NO = "no"
    PERHAPS = "perhaps"  # too little of it to tell an echo from an answer
    YES = "yes"


_LEAST_WORDS = {Echo.UNKNOWN: 3, Echo.FOUND: 1}
"""Without a sign of an echo, one or two words that we have just said are more likely an answer."""


class OwnWords:
    """What our voice said lately, and when; bounded."""

    def __init__(self) -> None:
        self._said: deque[tuple[float, str]] = deque(maxlen=KEPT)
        self._next = ""

    def add(self, at_s: float, text: str, following: str) -> None:
        """text has left just now; following: what comes after it and may be half said."""
        self._said.append((at_s, text))
        self._next = " ".join(following.split(maxsplit=2)[:2])

    def since(self, at_s: float) -> str:
        """As the reply was written, the two words that follow included; empty if nothing left."""
        said = "".join(text for when, text in self._said if when >= at_s)
        return f"{said} {self._next}" if said else ""


def own(heard: str, said: str, echo: Echo) -> Own:
    """Whether `heard` is (nearly) a part of what was `said` meanwhile.

    Both are compared as they sound ("$5" is "five dollars"), letter by letter, so that a word that
    was misheard or cut in half still counts for most of it.
    """
    if echo is Echo.NONE or not said:
        return Own.NO
    words, ours = _spoken(heard), _spoken(said)
    letters = sum(map(len, words))
    a, b = f" {' '.join(words)} ", f" {' '.join(ours)} "
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    alike = sum(len(a[m.a : m.a + m.size].replace(" ", "")) for m in blocks if m.size >= PIECE)
    if not letters or alike < ALIKE * letters:
        return Own.NO
    enough = len(words) >= _LEAST_WORDS[echo] and letters >= MIN_LETTERS
    return Own.YES if enough else Own.PERHAPS


def _spoken(text: str) -> list[str]:
    said = " ".join(word.text for word in speak_words(text, 0)).lower().replace("'", "")
    return _LETTERS.sub(" ", said).split()
