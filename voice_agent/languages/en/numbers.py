"""English numbers in words: pure functions from digits to what is said."""

from __future__ import annotations

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_TENS = (
    "zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_SCALES = ("", "thousand", "million", "billion", "trillion", "quadrillion")
_IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MAX_DIGITS = 3 * len(_SCALES)


def _below_thousand(n: int) -> list[str]:
    words: list[str] = []
    if n >= 100:
        words += [_ONES[n // 100], "hundred"]
        n %= 100
    if n >= 20:
        tens = _TENS[n // 10]
        words.append(f"{tens}-{_ONES[n % 10]}" if n % 10 else tens)
    elif n:
        words.append(_ONES[n])
    return words


def cardinal(n: int) -> list[str]:
    """42 -> ["forty-two"]. Beyond 18 digits: digit by digit."""
    if n < 0:
        return ["minus", *cardinal(-n)]
    if n == 0:
        return ["zero"]
    if len(str(n)) > MAX_DIGITS:
        return digits(str(n))
    words: list[str] = []
    for power in reversed(range(len(_SCALES))):
        part = n // 1000**power % 1000
        if part:
            words += _below_thousand(part)
            if power:
                words.append(_SCALES[power])
    return words


def ordinal(n: int) -> list[str]:
    """21 -> ["twenty-first"]."""
    words = cardinal(n)
    head, dash, last = words[-1].rpartition("-")
    if last in _IRREGULAR:
        last = _IRREGULAR[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return [*words[:-1], head + dash + last]


def digits(text: str) -> list[str]:
    """The decimal digits of text, one by one."""
    return [_ONES[int(char)] for char in text if char.isdecimal()]


def decimal(whole: str, fraction: str) -> list[str]:
    """("3", "14") -> three point one four."""
    return [*cardinal(int(whole or "0")), "point", *digits(fraction)]


def year(n: int) -> list[str]:
    """1999 -> nineteen ninety-nine; 2005 -> two thousand five; 1900 -> nineteen hundred."""
    high, low = divmod(n, 100)
    if not 1000 <= n <= 2999 or (high % 10 == 0 and low < 10):
        return cardinal(n)
    if low == 0:
        return [*cardinal(high), "hundred"]
    if low < 10:
        return [*cardinal(high), "oh", *cardinal(low)]
    return [*cardinal(high), *cardinal(low)]


def plural(words: list[str]) -> list[str]:
    """nineteen ninety -> nineteen nineties."""
    last = words[-1]
    if last.endswith("y"):
        last = last[:-1] + "ies"
    elif last.endswith(("x", "s")):
        last += "es"
    else:
        last += "s"
    return [*words[:-1], last]


def clock(hour: int, minute: int, half: str = "") -> list[str]:
    """(3, 5, "pm") -> three oh five P-M. Whole hours without a half: o'clock up to twelve."""
    words = cardinal(hour)
    if minute:
        words += ["oh", *cardinal(minute)] if minute < 10 else cardinal(minute)
    elif not half:
        words += ["o'clock"] if 1 <= hour <= 12 else ["hundred"]
    return [*words, "-".join(half.upper())] if half else words
