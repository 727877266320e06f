"""Names, abbreviations and acronyms in English: which are said long, which letter by letter."""

from __future__ import annotations

import re

from voice_agent.languages.rule import Rule, is_at_end

from . import abbreviations, roman

_ABBREVIATIONS = "|".join(sorted(abbreviations.SPOKEN, key=len, reverse=True))
_AFTER_IS_NAME = re.compile(r"\s+[A-Z]")
_ACRONYM = re.compile(r"(?P<letters>[A-Z]{2,5})(?P<ending>'s|s)?")
_VOWELS = frozenset("AEIOUY")
_LETTER = r"[^\W\d_²³½¼¾⅓⅔⅛]"
_PART = rf"{_LETTER}+(?:['’]{_LETTER}+)*"


def spelled(letters: str) -> str:
    """One word that both voices read letter by letter: they read "A-M" so, and not "A M"."""
    return "-".join(letters.upper())


def acronym(text: str) -> str:
    """An acronym that is said by its letters, so written; any other word as it is.

    Those without a vowel are, and those of a list; the others are read as words (NASA, PIN).
    """
    found = _ACRONYM.fullmatch(text)
    if found is None:
        return text
    letters = found["letters"]
    vowelless = not _VOWELS & set(letters) and letters not in abbreviations.SOUNDS
    if not vowelless and letters not in abbreviations.LETTERS:
        return text
    return spelled(letters) + (f"'{found['ending'][-1]}" if found["ending"] else "")


def word(text: str) -> list[str]:
    text = text.replace("’", "'").rstrip("'")
    lowered = text.lower()
    if lowered in abbreviations.STOPLESS and (text[0].isupper() or lowered in ("vs", "etc")):
        return [abbreviations.SPOKEN[lowered]]
    return ["-".join(map(acronym, text.split("-")))]


def _word(match: re.Match[str]) -> list[str]:
    return word(match.group())


def _roman(match: re.Match[str]) -> list[str]:
    return roman.said(match) or _word(match)


def _abbreviation(match: re.Match[str]) -> list[str]:
    short = match["short"]
    if short is None:
        return ["number"]
    if short.islower() and short in abbreviations.CAPITALISED:
        after = match.string[match.end() :][:1]
        return [short + "."] if is_at_end(match) or after.isspace() else [short]
    place = abbreviations.AFTER_NAME.get(short.lower())
    if place and _before_is_name(match) and not _AFTER_IS_NAME.match(match.string, match.end()):
        return [place]
    return abbreviations.SPOKEN[short.lower()].split()


def _before_is_name(match: re.Match[str]) -> bool:
    before = match.string[: match.start()].split()
    return bool(before) and before[-1][0].isupper() and before[-1][-1].isalpha()


def _initials(match: re.Match[str]) -> list[str]:
    bare = match.group().replace(".", "").lower()
    if bare in abbreviations.SPOKEN:
        return abbreviations.SPOKEN[bare].split()
    return [spelled(bare)]


PAGE = Rule(
    "page", r"\b(?P<pages>pp?)\.(?=\s?\d)", lambda m: ["pages" if m["pages"] == "pp" else "page"]
)
SHORTENED = (
    Rule("initials", r"\b(?:[A-Za-z]\.){2,}|\b[A-Z]\.(?=\s?[A-Z])", _initials),
    Rule("abbreviation", rf"\b(?P<short>(?i:{_ABBREVIATIONS}))\.|\bNo\.(?=\s?\d)", _abbreviation),
)
WORDS = (
    Rule("roman", r"(?<=\s)[IVXLCDM]+(?![\w'’])(?!-\w)", _roman),
    Rule("word", rf"{_PART}(?:-{_PART})*['’]?", _word),
)
