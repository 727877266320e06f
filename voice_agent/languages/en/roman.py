"""Roman numerals where they are plain: after a ruler's name, a part of a work, or a title."""

from __future__ import annotations

import re

from . import numbers
from .abbreviations import words

_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_WELL_FORMED = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_RULERS = words(
    "Albert Alexander Alfonso Baldwin Benedict Catherine Charles Christian Clement Edward Elizabeth"
    " Ferdinand Francis Frederick George Gregory Gustav Harald Henry Innocent James John Joseph"
    " Juan Karl Leo Leopold Louis Mary Maximilian Napoleon Nicholas Otto Paul Pedro Peter Philip"
    " Pius Ramesses Richard Robert Rudolf Sigismund Stephen Urban Victor Wilhelm William"
)
_NUMBERED = words(
    "act appendix article book bowl canto chapter class episode exhibit figure grade group lesson"
    " level mark model number page part phase plan psalm round scene section stage step table tier"
    " title type unit verse volume war"
)
_NOT_TITLES = words(
    "A An And But By For From He Her His I In It Its My No Of On Or Our She That The Their They"
    " This To We With You Your"
)
_GOES_ON = re.compile(r"\s*(?:$|[.,;:!?)\]–—-]|(?:of|and|or|to|is|was|through|on|in)\b)")


def value(text: str) -> int:
    """0 if it is not a well-formed numeral of capital letters."""
    if not text or not _WELL_FORMED.fullmatch(text):
        return 0
    total = 0
    for here, after in zip(text, [*text[1:], ""], strict=True):
        worth = _VALUES[here]
        total += -worth if after and _VALUES[after] > worth else worth
    return total


def said(match: re.Match[str]) -> list[str]:
    """The words of a numeral that is one; empty if it more likely is a word."""
    text = match.group()
    before = match.string[: match.start()].rstrip().rpartition(" ")[2].strip("\"'“‘([*_`")
    n = value(text)
    if not n or not before.isalpha():
        return []
    if before in _RULERS and set(text) <= set("IVX") and not (text == "I" and _is_pronoun(match)):
        return ["the", *numbers.ordinal(n)]
    if before.lower() in _NUMBERED and (
        len(text) > 1 or (before[0].isupper() and _GOES_ON.match(match.string, match.end()))
    ):
        return numbers.cardinal(n)
    title = before[0].isupper() and before not in _NOT_TITLES and before != before.upper()
    if title and len(text) > 1 and set(text) <= set("IVX"):
        return numbers.cardinal(n)
    return []


def _is_pronoun(match: re.Match[str]) -> bool:
    return not _GOES_ON.match(match.string, match.end())
