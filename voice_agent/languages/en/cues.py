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

DIGITS = frozenset(
    ["zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "double"]
)
PHONE_DIGITS = (7, 10, 11)  # a local number, one with its area code, one with a leading 1
JOINTS = frozenset(["at", "dot", "underscore", "dash", "hyphen", "slash", "plus"])
"""Spoken punctuation of addresses: none ends one."""

_WORD = re.compile(r"[\w']+")
_ADDRESS = re.compile(r"\be-?mail( address)?( is|'s)\b|@")
_WHOLE_ADDRESS = re.compile(r"(\.|\bdot )(com|net|org|edu|gov|io|co|uk|us|info)[.?!]?$")


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
    if words[-1] in DANGLING:
        # "What is that?" ends on such a word too: a question mark outweighs the suspicion.
        return -0.2 if text[-1] == "?" else (-0.5 if closed else -1.0)
    if text[-1] in ",;:":
        return -0.7
    if words[-1] in JOINTS or _is_spelled(words, text):
        return -0.6
    if text[-1] == "?":
        return 0.4
    return 0.3 if closed else -0.1


def _is_spelled(words: list[str], text: str) -> bool:
    """An address, or a number of at least three pieces, that is not whole yet."""
    if _ADDRESS.search(text):
        return _WHOLE_ADDRESS.search(text) is None
    pieces = list(itertools.takewhile(_is_piece, reversed(words)))
    n = sum(len(p) if p.isdigit() else 1 for p in pieces)
    return len(pieces) >= 3 and n not in PHONE_DIGITS


def _is_piece(word: str) -> bool:
    return word.isdigit() or word in DIGITS or len(word) == 1
