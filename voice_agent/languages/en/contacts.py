"""Written addresses and numbers to call in English: URLs, e-mail, telephone and card numbers."""

from __future__ import annotations

import re
from functools import lru_cache

from voice_agent.languages.rule import Rule

from . import numbers
from .units import TLDS

_TLDS = "|".join(sorted(TLDS))
_SIGNS = {
    ".": "dot", "/": "slash", "@": "at", "-": "dash", "_": "underscore", "+": "plus", ":": "colon",
}  # fmt: skip
_PATH_CHARS = 24


@lru_cache(maxsize=256)
def _address(text: str) -> tuple[str, ...]:
    """A host, path or mail address, sign by sign: example.com/a -> example dot com slash a."""
    words: list[str] = []
    for part in re.findall(r"[^\W\d_]+|\d+|[./@\-_+:]", text):
        if part in _SIGNS:
            words.append(_SIGNS[part])
        elif part.isdecimal():
            words += numbers.digits(part) if len(part) > 2 else numbers.cardinal(int(part))
        else:
            words.append(part)
    return tuple(words)


def _url(match: re.Match[str]) -> list[str]:
    """The host, and the path when it is short: nobody wants to hear a query string."""
    text = re.sub(r"^https?://", "", match.group()).split("?")[0].split("#")[0].rstrip("/")
    host, _, path = text.removeprefix("www.").partition("/")
    short = 0 < len(path) <= _PATH_CHARS
    return list(_address(text.removeprefix("www.") if short else host))


def _grouped(match: re.Match[str]) -> list[str]:
    """Digit by digit, with a breath after each group but the last."""
    words = ["plus"] if match.group().startswith("+") else []
    groups = re.findall(r"\d+", match.group())
    for i, group in enumerate(groups):
        said = numbers.digits(group)
        if i < len(groups) - 1:
            said[-1] += ","
        words += said
    return words


WEB = (
    Rule("url", r"(?:https?://|www\.)[^\s<>\"'`)\]]*[^\s<>\"'`)\].,;:!?*_]", _url),
    Rule(
        "email",
        r"[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}",
        lambda m: list(_address(m.group())),
    ),
    Rule(
        "domain",
        rf"\b(?:[A-Za-z0-9-]+\.)+(?:{_TLDS})\b(?:/[\w\-./%#?=&]*\w)?",
        lambda m: list(_address(m.group())),
    ),
)
CALLS = (
    Rule("card", r"(?<![\w.-])\d{4}(?:[ -]\d{4}){2,4}(?![\w-])", _grouped),
    Rule(
        "phone",
        r"(?<![\w.])(?:(?:\+\d{1,3}|1)[-. ])?(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}(?!\d)"
        r"|(?<![\w.-])\d{3}-\d{4}(?![\d-])"
        r"|(?<!\w)\+\d{1,3}(?:[-. ]?\(?\d{1,5}\)?){2,6}(?!\d)|(?<!\w)\+\d{7,15}\b"
        r"|(?<![\w.])0\d{2,4}[- ]\d{3,4}[- ]\d{3,4}(?!\d)",
        _grouped,
    ),
)
