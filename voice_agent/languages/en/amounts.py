"""Written amounts in English: numbers, money, measures, ranges, fractions, versions."""

from __future__ import annotations

import re

from voice_agent.languages.rule import Rule

from . import numbers
from .units import CURRENCIES, CURRENCY_CODES, FRACTIONS, PER, SCALES, UNITS

NUM = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_TIGHT = frozenset("AVWhsl")  # read as units only right after the number: "5A", not "5 A"
_UNITS = "|".join(sorted(map(re.escape, UNITS.keys() - _TIGHT), key=len, reverse=True))
_SIGNS = [sign for sign in CURRENCIES if not sign.isalpha()]  # letters alone are a code, below
_SIGN = "|".join(sorted(map(re.escape, _SIGNS), key=len, reverse=True))
_SCALE = r"thousand|million|billion|trillion|bn|[kKmMbB]"
_CODES = "|".join(CURRENCY_CODES)
_PARTS = "".join(FRACTIONS)
_DENOMINATORS = frozenset((2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32))
_NAMED = {2: "half", 3: "third", 4: "quarter"}


def plain(text: str) -> str:
    return text.replace(",", "")


def number(text: str) -> list[str]:
    """A number as written: thousands, decimals, sign, year, or a long string of digits."""
    sign = ["minus"] if text[0] in "-−" else []
    body = plain(text.lstrip("-−"))
    whole, dot, fraction = body.partition(".")
    if dot:
        return [*sign, *numbers.decimal(whole, fraction)]
    if "," not in text and not sign:
        if len(whole) > 6 or (len(whole) > 1 and whole[0] == "0"):
            return numbers.digits(whole)
        if len(whole) == 4 and 1100 <= int(whole) <= 2099:
            return numbers.year(int(whole))
    return [*sign, *numbers.cardinal(int(whole))]


def count(text: str) -> list[str]:
    """A quantity: never read as a year."""
    whole, dot, fraction = plain(text).partition(".")
    return numbers.decimal(whole, fraction) if dot else numbers.cardinal(int(whole))


def _amount(amount: str, sign: str, scale: str | None) -> list[str]:
    one, many, cent, cents = CURRENCIES[sign]
    amount = plain(amount)
    if scale:
        return [*count(amount), SCALES[scale.lower()], *many.split()]
    whole, _, fraction = amount.partition(".")
    if len(fraction) not in (0, 2) or (fraction and not cent):
        return [*numbers.decimal(whole, fraction), *many.split()]
    units, hundredths = int(whole), int(fraction or "0")
    words = [*numbers.cardinal(units), *(one if units == 1 else many).split()] if units else []
    if hundredths:
        small = [*numbers.cardinal(hundredths), cent if hundredths == 1 else cents]
        words = [*words, "and", *small] if words else small
    return words or ["zero", *many.split()]


def _money(match: re.Match[str]) -> list[str]:
    minus = ["minus"] if match.group()[0] in "-−" else []
    return [*minus, *_amount(match["amount"], match["sign"], match["scale"])]


def _money_range(match: re.Match[str]) -> list[str]:
    low = count(match["lowmoney"])
    return [*low, "to", *_amount(match["highmoney"], match["rangesign"], match["rangescale"])]


def _currency(match: re.Match[str]) -> list[str]:
    code = match["before"] or match["after"]
    amount = match["afterbefore"] or match["beforeafter"]
    return _amount(amount, CURRENCY_CODES[code], match["codescale"])


def _fraction(match: re.Match[str]) -> list[str]:
    top, bottom = int(match["top"]), int(match["bottom"])
    if bottom not in _DENOMINATORS or top >= bottom:
        return [*numbers.cardinal(top), *numbers.cardinal(bottom)]  # 24/7, 9/11
    if bottom in _NAMED:
        part = _NAMED[bottom]
        many = {"half": "halves"}.get(part, part + "s")
        return [*numbers.cardinal(top), part if top == 1 else many]
    words = numbers.ordinal(bottom)
    return [*numbers.cardinal(top), *(words if top == 1 else numbers.plural(words))]


def _mixed(match: re.Match[str]) -> list[str]:
    part = FRACTIONS[match["part"]].split()
    if not match["whole"]:
        return part
    return [
        *numbers.cardinal(int(match["whole"])),
        "and",
        *(["a"] if part[0] == "one" else part[:1]),
        *part[1:],
    ]


def _unit(match: re.Match[str]) -> list[str]:
    one, many = UNITS[match["unit"] or match["tight"]]
    minus = ["minus"] if match["minus"] else []
    said = one if plain(match["count"]) == "1" else many
    return [*minus, *count(match["count"]), *said.split()]


def _height(match: re.Match[str]) -> list[str]:
    feet = int(match["feet"])
    return [*numbers.cardinal(feet), "foot", *numbers.cardinal(int(match["inches"]))]


def _power(match: re.Match[str]) -> list[str]:
    exponent = match["exponent"]
    named = {"2": "squared", "3": "cubed"}.get(exponent)
    return [named] if named else ["to", "the", *number(exponent)]


def _version(match: re.Match[str]) -> list[str]:
    """2.5.1 -> two point five point one; an address of four numbers: dot between digits."""
    parts = match["numbers"].split(".")
    address = len(parts) == 4 and all(int(p) <= 255 for p in parts) and not match["v"]
    words: list[str] = ["version"] if match["v"] else []
    for i, part in enumerate(parts):
        if i:
            words.append("dot" if address else "point")
        words += numbers.digits(part) if address and len(part) > 2 else numbers.cardinal(int(part))
    return words


def _digits(match: re.Match[str]) -> list[str]:
    """Digits inside a word ("B12", "4K")."""
    text = match.group()
    return numbers.digits(text) if len(text) > 3 or text[0] == "0" else numbers.cardinal(int(text))


MONEY = (
    Rule(
        "moneyrange",
        rf"(?P<rangesign>{_SIGN})\s?(?P<lowmoney>{NUM})\s?[-–—]\s?(?P=rangesign)?"
        rf"(?P<highmoney>{NUM})(?:\s?(?P<rangescale>{_SCALE})\b)?(?![\w-])",
        _money_range,
    ),
    Rule(
        "money",
        rf"(?:(?<!\w)[-−])?(?P<sign>{_SIGN})\s?(?P<amount>{NUM})(?:\s?(?P<scale>{_SCALE})\b)?",
        _money,
    ),
    Rule(
        "currency",
        rf"(?<![\w.])(?:(?P<beforeafter>{NUM})\s?(?:(?P<codescale>{_SCALE})\s)?(?P<after>{_CODES})"
        rf"|(?P<before>{_CODES})\s?(?P<afterbefore>{NUM}))(?!\w)",
        _currency,
    ),
)  # fmt: skip
VERSIONS = (
    Rule("version", r"\b(?P<v>v)?(?P<numbers>\d+(?:\.\d+){2,})(?![\w.]*\d)", _version),
    Rule("versionmark", r"\bv(?=\d+\.\d)", lambda m: ["version"]),
)
RANGES = (
    Rule(
        "percents",
        rf"(?<![\w.-])(?P<lowpart>{NUM})\s?%\s?[-–]\s?(?P<highpart>{NUM})\s?%",
        lambda m: [*count(m["lowpart"]), "to", *count(m["highpart"]), "percent"],
    ),
    Rule(
        "range",
        rf"(?<![\w.-])(?P<low>{NUM})\s?[-–]\s?(?P<high>{NUM})(?![\w-])",
        lambda m: [*number(m["low"]), "to", *number(m["high"])],
    ),
)
AMOUNTS = (
    Rule(
        "ordinal",
        r"\b(?P<nth>\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b",
        lambda m: numbers.ordinal(int(plain(m["nth"]))),
    ),
    Rule("height", r"(?<![\w.])(?P<feet>\d)['’′]\s?(?P<inches>\d{1,2})[\"”″]", _height),
    Rule("fraction", r"(?<![\w/.])(?P<top>\d{1,2})/(?P<bottom>\d{1,2})(?![\w/])", _fraction),
    Rule("mixed", rf"(?P<whole>(?<![\w.])\d+\s?)?(?P<part>[{_PARTS}])", _mixed),
    Rule(
        "size",
        rf"(?<![\w.])(?P<wide>{NUM})\s?[x×]\s?(?P<high2>{NUM})(?!\w)",
        lambda m: [*count(m["wide"]), "by", *count(m["high2"])],
    ),
    Rule(
        "times", rf"(?<![\w.])(?P<factor>{NUM})[x×](?!\w)", lambda m: [*count(m["factor"]), "times"]
    ),
    Rule(
        "measure",
        rf"(?<![\w.])(?P<minus>[-−])?(?P<count>{NUM})"
        rf"(?:\s?(?P<unit>{_UNITS})|(?P<tight>[{''.join(sorted(_TIGHT))}]))(?![\w°])",
        _unit,
    ),
    Rule(
        "per",
        rf"(?<=[\w%])\s?/\s?(?P<each>{'|'.join(sorted(PER, key=len, reverse=True))})\b",
        lambda m: ["per", PER[m["each"]]],
    ),
    Rule("power", r"(?<=[\w)])\^(?P<exponent>-?\d+)", _power),
    Rule("about", r"~(?=\s?[\d$€£¥₹])", lambda m: ["about"]),
    Rule("number", rf"(?:(?<![\w)])[-−])?(?:{NUM})(?![\w])", lambda m: number(m.group())),
)
DIGITS = Rule("digits", r"\d+", _digits)
