"""English cues that a sentence is or is not over, read off a transcript."""

from __future__ import annotations

import itertools
import re

DANGLING = frozenset(
    [
        "a", "an", "the", "this", "that", "these", "those", "my", "your", "his", "her", "its",
        "our", "their", "some", "any", "every", "each", "no", "and", "or", "but", "nor", "so",
        "because", "since", "if", "unless", "until", "while", "although", "though", "when", "where",
        "whether", "than", "of", "to", "in", "on", "at", "by", "for", "from", "with", "without",
        "into", "onto", "about", "between", "under", "over", "through", "during", "as", "is", "are",
        "was", "were", "be", "am", "do", "does", "did", "have", "has", "had", "can", "could",
        "will", "would", "shall", "should", "may", "might", "must", "i", "we", "they", "he", "she",
        "who", "which", "what", "whose", "very", "really", "just", "also", "like", "not", "gonna",
        "wanna",
    ]
)  # fmt: skip
"""Words an English sentence seldom ends on."""

FILLERS = frozenset(["um", "uh", "erm", "er", "hmm", "mm", "well", "so", "okay", "let's"])
"""Sounds that hold the floor while the speaker thinks."""

PHRASES = (
    "let me think", "let me see", "i mean", "you know", "how about", "what about", "such as",
    "for example", "kind of", "sort of", "one moment", "hold on", "wait a",
)  # fmt: skip
WHOLE = frozenset(
    [
        "yes", "no", "yeah", "yep", "nope", "sure", "okay", "ok", "thanks", "bye", "goodbye",
        "hello", "hi", "right", "exactly", "please",
    ]
)  # fmt: skip
"""Answers that are complete alone."""

UNITS = frozenset(
    ["zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "double"]
)
TENS = frozenset(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"])
TEENS = frozenset(
    [
        "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
        "eighteen", "nineteen",
    ]
)  # fmt: skip
PHONE_DIGITS = (10, 11)  # with its area code; with a leading 1
MAYBE_PHONE_DIGITS = 7  # a local number, or the beginning of a longer one
CARD_DIGITS = (15, 16)
ZIP_DIGITS = (5, 9)
JOINTS = frozenset(["at", "dot", "underscore", "dash", "hyphen", "slash", "plus"])
"""Spoken punctuation of addresses: none ends one."""

_WORD = re.compile(r"[\w']+")
_ADDRESS = re.compile(
    r"\be-?mail( address)?( is|'s)\b|@"
    r"|\bat (gmail|yahoo|hotmail|outlook|icloud|proton|aol|[\w ]+ dot)\b"
)
_WHOLE_ADDRESS = re.compile(r"(\.|\bdot )(com|net|org|edu|gov|io|co|uk|us|info)[.?!]?$")
_AS_IN = re.compile(r"\b[a-z] (as in|like in|for) \w+[.?!]?$")
_CARD = re.compile(r"\bcard\b")
_ZIP = re.compile(r"\b(zip|postal|post code)\b")
_BEGUN = re.compile(r"(i'm|'re|'ve|'d|'ll|it's|that's|there's|what's|here's|can't|don't)$")
GOES_ON, IS_WHOLE = -0.6, 0.3  # of something spelled


def completion_cue(transcript: str) -> float:
    """How finished the words look, in [-1, 1]: -1 surely goes on, 0 no evidence, 1 surely done.

    Punctuation is the recogniser's guess and so weighs little for "done" and more for "goes on".
    """
    text = transcript.strip().lower()
    words = _WORD.findall(text)
    if not words:
        return 0.0
    if text.endswith(("...", "…", "-", "—")):
        return -0.8
    if len(words) == 1 and words[0] in WHOLE:
        return 0.3
    tail = " ".join(words[-3:])
    if words[-1] in FILLERS or any(tail.endswith(phrase) for phrase in PHRASES):
        return -0.9
    closed = text[-1] in ".?!"
    if words[-1] in DANGLING or _BEGUN.search(words[-1]):
        # "What is that?" ends on such a word too: a question mark outweighs the suspicion.
        return -0.2 if text[-1] == "?" else (-0.5 if closed else -1.0)
    if text[-1] in ",;:":
        return -0.7
    if words[-1] in JOINTS:
        return GOES_ON
    if (spelled := _spelled(words, text)) is not None:
        return spelled
    if text[-1] == "?":
        return 0.4
    return 0.3 if closed else -0.3


def _spelled(words: list[str], text: str) -> float | None:
    """The cue of an address or number that is being spelled; None: nothing is, or it may be whole.

    A number is spelled in at least three pieces, or in two of five digits and more; two or four
    digits with a ten among them are a count, a year or a time.
    """
    if _ADDRESS.search(text):
        return IS_WHOLE if _WHOLE_ADDRESS.search(text) else GOES_ON
    if _AS_IN.search(text):
        return GOES_ON
    pieces = list(itertools.takewhile(_is_piece, reversed(words)))[::-1]
    n = _n_digits(pieces)
    if all(len(p) == 1 and p.isalpha() for p in pieces) and len(pieces) < 3:
        return None
    if n < 5 and (len(pieces) < 3 or any(p in TENS or p in TEENS for p in pieces)):
        return None
    if _CARD.search(text):
        return IS_WHOLE if n in CARD_DIGITS else GOES_ON
    if n in PHONE_DIGITS or (_ZIP.search(text) and n in ZIP_DIGITS) or n in CARD_DIGITS:
        return IS_WHOLE
    if n == MAYBE_PHONE_DIGITS or len(pieces) < 2:
        return None
    return GOES_ON


def _is_piece(word: str) -> bool:
    return word.isdigit() or len(word) == 1 or word in UNITS or word in TENS or word in TEENS


def _n_digits(pieces: list[str]) -> int:
    """Digits and letters that these stand for: "thirty four" is two, "double five" too."""
    n, before = 0, ""
    for piece in pieces:
        if piece.isdigit():
            n += len(piece)
        elif piece in TENS or piece in TEENS:
            n += 2
        elif before not in TENS or piece in ("zero", "oh"):
            n += 1
        before = piece
    return n
