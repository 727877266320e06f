"""English listener responses, and words that stop a speaker."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SOUNDS = frozenset(
    [
        "mm", "mmm", "mhm", "mmhm", "mmhmm", "mm-hm", "mm-hmm", "mhmm", "hm", "hmm", "hmmm",
        "uh-huh", "uhhuh", "huh", "uh", "um", "er", "erm", "ah", "ahh", "oh", "ooh",
    ]
)  # fmt: skip
_WORDS = frozenset(
    [
        "yeah", "yep", "yup", "yes", "ok", "okay", "right", "sure", "wow", "really", "alright",
        "i-see", "got-it", "exactly", "true", "cool", "great", "nice", "good", "fine", "indeed",
        "of-course", "all-right", "go-on", "makes-sense",
    ]
)  # fmt: skip
_ALONE = _SOUNDS | _WORDS
_PHRASES = ("i see", "got it", "of course", "all right", "go on", "makes sense", "uh huh", "mm hm")
_MAX_WORDS = 3
_WORD = re.compile(r"[\w'-]+")

_DENY = frozenset(["not", "isn't", "don't", "never", "make", "is", "are", "you"])
"""With one of these, "right" and "sure" tell or ask something."""

STOP_WORDS = frozenset(
    [
        "stop", "wait", "hold on", "hang on", "excuse me", "one moment", "one second",
        "just a moment", "just a second", "pause", "quiet", "shut up", "enough", "cancel", "no no",
        "never mind",
    ]
)  # fmt: skip
"""Whoever says one of these wants the floor now, whatever follows."""


def _flat(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))


def n_words(text: str) -> int:
    return len(_WORD.findall(text))


def is_backchannel(text: str, more: Iterable[str] = ()) -> bool:
    """True if every word of a short text is a listener response ("mm-hm", "oh okay", "I see").

    more: further words or phrases that are.
    """
    flat = _flat(text)
    own = [_flat(m) for m in more]
    if flat and flat in own:
        return True
    words = _grouped(flat, own)
    known = _ALONE.union(o.replace(" ", "-") for o in own)
    return 0 < len(words) <= _MAX_WORDS and all(w in known for w in words)


def _grouped(flat: str, more: Iterable[str] = ()) -> list[str]:
    """Words, each known phrase as one."""
    for phrase in (*_PHRASES, *(m for m in more if " " in m)):
        flat = re.sub(rf"\b{re.escape(phrase)}\b", phrase.replace(" ", "-"), flat)
    return flat.split()


def ends_in_backchannel(text: str) -> bool:
    """True if the last of a few words is a listener response and the others deny or ask nothing: a
    recogniser hears "oh, I see" as "low, I see" or "I was okay"."""
    words = _grouped(_flat(text))
    if "?" in text or not 0 < len(words) <= _MAX_WORDS:
        return False
    return words[-1] in _ALONE and not _DENY.intersection(words)


_VALUES = frozenset(
    [
        "zero", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
        "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
        "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred",
        "thousand", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
        "january", "february", "april", "june", "july", "august", "september", "october",
        "november", "december", "next", "week",
    ]
)  # fmt: skip
_QUERIES = frozenset(["what", "sorry what", "which one"])


def has_value(text: str) -> bool:
    """True if the text names a number or a time: what callers put into one short word, and no
    listener response is taken for."""
    return any(char.isdigit() for char in text) or bool(_VALUES.intersection(_flat(text).split()))


def is_query(text: str) -> bool:
    """True if the text is a question of one or two words that asks for something to be repeated."""
    return _flat(text) in _QUERIES


def is_hesitation(text: str) -> bool:
    """True if a short text is sounds alone ("um", "mm"): no answer to anything."""
    words = _flat(text.replace("uh huh", "uh-huh").replace("mm hm", "mm-hm")).split()
    return 0 < len(words) <= _MAX_WORDS and all(w in _SOUNDS for w in words)


def has_stop_word(text: str, more: Iterable[str] = ()) -> bool:
    """Whether the text begins with a word that stops a speaker, listener responses aside
    ("okay, wait"). more: further words or phrases that do."""
    words = _flat(text).split()
    while words and words[0] in _ALONE | {"no", "please", "sorry", "hey", "but", "so", "just"}:
        if _starts(words, more):
            return True
        words = words[1:]
    return _starts(words, more)


def _starts(words: list[str], more: Iterable[str]) -> bool:
    text = " ".join(words) + " "
    return any(text.startswith(_flat(s) + " ") for s in (*STOP_WORDS, *more))
