"""Every written form of English that is said otherwise than written, in order of precedence."""

from __future__ import annotations

import re

from voice_agent.languages.rule import Rule

from .amounts import AMOUNTS, DIGITS, MONEY, RANGES, VERSIONS
from .contacts import CALLS, WEB
from .dates import DATES, DECADE, UNTIL
from .markup import LISTS, MARKUP
from .names import PAGE, SHORTENED, WORDS
from .units import SYMBOLS

PUNCTUATION = {
    ",": ",", ".": ".", "?": "?", "!": "!", ";": ";", ":": ":", "…": ".", "—": ",", "–": ",",
}  # fmt: skip
"""What a mark sounds like. Anything else between words is not heard."""

STOPPED = frozenset(("initials", "abbreviation", "time", "hour"))
"""Forms whose own full stop may also end the sentence."""

RESPELLED: dict[str, str] = {"AT&T": "A-T and T", "C++": "C plus plus", "C#": "C sharp"}
"""A lexicon that is always there; an agent's own goes before it."""


def _mark(match: re.Match[str]) -> list[str]:
    return [PUNCTUATION.get(match.group(), ",")]


RULES: tuple[Rule, ...] = (
    *MARKUP,
    *WEB,
    *LISTS,
    *MONEY,
    *DATES,
    *CALLS,
    *VERSIONS,
    DECADE,
    *RANGES,
    UNTIL,
    *AMOUNTS,
    PAGE,
    *SHORTENED,
    *WORDS,
    DIGITS,
    Rule("dots", r"\.{2,}", lambda m: ["."]),
    Rule("hashnum", r"\#(?=\d)", lambda m: ["number"]),
    Rule("cell", r"\|", lambda m: [","]),
    Rule("mark", r"[,.?!;:…—]|(?<=\s)[-–]{1,2}(?=\s)", _mark),
    Rule(
        "symbol",
        "[" + "".join(map(re.escape, SYMBOLS)) + "]",
        lambda m: SYMBOLS[m.group()].split(),
    ),
)
