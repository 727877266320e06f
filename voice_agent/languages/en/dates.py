"""Written dates and times in English."""

from __future__ import annotations

import re

from voice_agent.languages.rule import Rule

from . import numbers
from .units import MONTHS

_SHORT = "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
_MONTHS = "|".join([*MONTHS, _SHORT])
_DAYS = {
    "Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday",
    "Thur": "Thursday", "Thurs": "Thursday", "Fri": "Friday", "Sat": "Saturday", "Sun": "Sunday",
}  # fmt: skip
_WEEKDAYS = "|".join(sorted(_DAYS, key=len, reverse=True))


def _month(text: str) -> str:
    return next(m for m in MONTHS if m.startswith(text[:3]))


def _date(month: int, day: int, year: int) -> list[str]:
    return [MONTHS[month - 1], *numbers.ordinal(day), *numbers.year(year)]


def _full_year(text: str) -> int:
    return int(text) if len(text) == 4 else 2000 + int(text)


def _month_day(match: re.Match[str]) -> list[str]:
    words = [_month(match["month"]), *numbers.ordinal(int(match["day"]))]
    return [*words, "to", *numbers.ordinal(int(match["lastday"]))] if match["lastday"] else words


def _decade(match: re.Match[str]) -> list[str]:
    tens = match["tens"]
    if not match["century"]:
        return numbers.plural(numbers.cardinal(int(tens))) if int(tens) else ["two", "thousands"]
    year = int(match["century"] + tens)
    return numbers.plural(numbers.year(year) if year >= 1000 else numbers.cardinal(year))


def _time(match: re.Match[str]) -> list[str]:
    half = (match["half"] + "m") if match["half"] else ""
    words = numbers.clock(int(match["h24"]), int(match["minute"]), half)
    seconds = int(match["secs"] or 0)
    if not seconds:
        return words
    return [*words, "and", *numbers.cardinal(seconds), "second" if seconds == 1 else "seconds"]


DATES = (
    Rule(
        "isodate",
        r"\b(?P<iy>\d{4})-(?P<im>0[1-9]|1[0-2])-(?P<id>0[1-9]|[12]\d|3[01])\b",
        lambda m: _date(int(m["im"]), int(m["id"]), int(m["iy"])),
    ),
    Rule(
        "usdate",
        r"\b(?P<um>0?[1-9]|1[0-2])/(?P<ud>0?[1-9]|[12]\d|3[01])/(?P<uy>\d{4}|\d{2})\b",
        lambda m: _date(int(m["um"]), int(m["ud"]), _full_year(m["uy"])),
    ),
    Rule(
        "monthday",
        rf"\b(?P<month>{_MONTHS})\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b"
        r"(?:\s?[-–]\s?(?P<lastday>\d{1,2})(?:st|nd|rd|th)?\b)?(?![:.,]?\d|%)",
        _month_day,
    ),
    Rule(
        "daymonth",
        rf"(?<![\w.,$€£#-])(?P<daybefore>[12]\d|3[01]|0?[1-9])\s(?P<monthafter>{_MONTHS})\b\.?",
        lambda m: [_month(m["monthafter"]), *numbers.ordinal(int(m["daybefore"]))],
    ),
    Rule(
        "weekday",
        rf"\b(?P<dayname>{_WEEKDAYS})\b\.?(?=,?\s+(?:\d|{_MONTHS}))",
        lambda m: [_DAYS[m["dayname"]]],
    ),
    Rule(
        "time",
        r"\b(?P<h24>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<secs>[0-5]\d))?\b"
        r"(?:\s?(?P<half>[aApP])\.?[mM]\b\.?)?",
        _time,
    ),
    Rule(
        "hour",
        r"\b(?P<hour12>1[0-2]|0?[1-9])\s?(?P<half12>[aApP])\.?[mM]\b\.?",
        lambda m: numbers.clock(int(m["hour12"]), 0, m["half12"] + "m"),
    ),
)
DECADE = Rule("decade", r"(?:\b(?P<century>\d{2})|['’])(?P<tens>\d0)['’]?s\b", _decade)
UNTIL = Rule("until", r"(?<=[\dmM.])\s?[-–]\s?(?=\d{1,2}:\d)", lambda m: ["to"])
