"""How one written form is recognised and what is said for it: the unit a language is made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """name and the groups named in `pattern` are unique within a language.

    said: a match -> what a voice says for it: words, or one mark of punctuation, or nothing.
    """

    name: str
    pattern: str
    said: Callable[[re.Match[str]], list[str]]


def silent(match: re.Match[str]) -> list[str]:
    return []


def is_at_end(match: re.Match[str]) -> bool:
    """Nothing but white space follows."""
    return not match.string[match.end() :].strip()
