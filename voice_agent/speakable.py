"""Text for the ear: what a voice should say for a piece of text, word by word, with its source.

Numbers, money, dates, times, units, addresses and symbols are spelled out; markdown and emoji are
dropped. Each spoken word carries its reply span and the sentence punctuation that follows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from .languages.en import abbreviations, numbers
from .languages.en.units import CURRENCIES, MONTHS, SCALES, SYMBOLS, TLDS, UNITS
from .tts.base import SpokenWord

_KEPT = {",": ",", ".": ".", "?": "?", "!": "!", ";": ";", ":": ":", "…": ".", "—": ",", "–": ","}
_NUM = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_TIGHT = frozenset("AVWhsl")  # read as units only right after the number: "5A", not "5 A"
_UNITS = "|".join(sorted(map(re.escape, UNITS.keys() - _TIGHT), key=len, reverse=True))
_MONTHS = "|".join([*MONTHS, "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"])
_TLDS = "|".join(sorted(TLDS))
_ABBREVIATIONS = "|".join(sorted(abbreviations.SPOKEN, key=len, reverse=True))
_MONEY = "".join(map(re.escape, CURRENCIES))

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("link", r"!?\[(?P<label>[^\[\]]*)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s+\"[^\"]*\")?\)"),
    ("fence", r"```[A-Za-z0-9_+-]*"),
    ("url", r"(?:https?://|www\.)[^\s<>\"'`)\]]*[^\s<>\"'`)\].,;:!?*_]"),
    ("email", r"[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"),
    ("domain", rf"\b(?:[A-Za-z0-9-]+\.)+(?:{_TLDS})\b(?:/[\w\-./%#?=&]*\w)?"),
    ("bullet", r"^[ \t]*(?:[-*+•]|#{1,6}|>)(?=\s)"),
    ("item", r"^[ \t]*(?P<itemno>\d{1,2})[.)](?=\s)"),
    (
        "money",
        rf"-?(?P<sign>[{_MONEY}])\s?(?P<amount>{_NUM})"
        r"(?:\s?(?P<scale>thousand|million|billion|trillion|bn|[kKmMbB])\b)?",
    ),
    ("isodate", r"\b(?P<iy>\d{4})-(?P<im>0[1-9]|1[0-2])-(?P<id>0[1-9]|[12]\d|3[01])\b"),
    ("usdate", r"\b(?P<um>0?[1-9]|1[0-2])/(?P<ud>0?[1-9]|[12]\d|3[01])/(?P<uy>\d{4}|\d{2})\b"),
    (
        "monthday",
        rf"\b(?P<month>{_MONTHS})\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?![:.,]?\d|%)",
    ),
    (
        "time",
        r"\b(?P<h24>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::[0-5]\d)?\b"
        r"(?:\s?(?P<half>[aApP])\.?[mM]\b\.?)?",
    ),
    ("hour", r"\b(?P<hour12>1[0-2]|0?[1-9])\s?(?P<half12>[aApP])\.?[mM]\b\.?"),
    (
        "phone",
        r"(?<![\w.])(?:\+\d{1,3}[-. ])?(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}(?!\d)"
        r"|(?<![\w.-])\d{3}-\d{4}(?![\d-])|\+\d{7,15}\b",
    ),
    ("ordinal", r"\b(?P<nth>\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b"),
    ("decade", r"(?:\b(?P<century>\d{2})|['’])(?P<tens>\d0)['’]?s\b"),
    ("range", rf"(?<![\w.-])(?P<low>{_NUM})\s?[-–]\s?(?P<high>{_NUM})(?![\w-])"),
    ("until", r"(?<=[\dmM.])\s?[-–]\s?(?=\d{1,2}:\d)"),
    ("fraction", r"(?<![\w/.])(?P<top>\d{1,2})/(?P<bottom>\d{1,2})(?![\w/])"),
    (
        "measure",
        rf"(?<![\w.])(?P<minus>[-−])?(?P<count>{_NUM})(?:\s?(?P<unit>{_UNITS})|(?P<tight>[{''.join(sorted(_TIGHT))}]))(?![\w°])",
    ),
    ("number", rf"(?:(?<![\w)])[-−])?(?:{_NUM})(?![\w])"),
    ("initials", r"\b(?:[A-Za-z]\.){2,}|\b[A-Z]\.(?=\s?[A-Z])"),
    ("abbreviation", rf"\b(?P<short>(?i:{_ABBREVIATIONS}))\.|\bNo\.(?=\s?\d)"),
    ("word", r"[^\W\d_]+(?:['’][^\W\d_]+)*(?:-[^\W\d_]+(?:['’][^\W\d_]+)*)*['’]?"),
    ("digits", r"\d+"),
    ("dots", r"\.{2,}"),
    ("hashnum", r"\#(?=\d)"),
    ("mark", r"[,.?!;:…—]|(?<=\s)[-–]{1,2}(?=\s)"),
    ("symbol", "[" + "".join(map(re.escape, SYMBOLS)) + "]"),
)
_SCANNER = re.compile(
    "|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS), re.MULTILINE
)
_NAMES = [name for name, _ in _PATTERNS]
_STOPPED = ("initials", "abbreviation", "time", "hour")
_AFTER_IS_NAME = re.compile(r"\s+[A-Z]")
_DENOMINATORS = frozenset((2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32))
_FRACTIONS = {2: "half", 3: "third", 4: "quarter"}


def speak_words(
    text: str, base_offset: int, lexicon: Mapping[str, str] | None = None
) -> tuple[SpokenWord, ...]:
    """The words a voice says for `text`, which starts at base_offset of the reply.

    lexicon: word -> respelling, matched without regard to case. Spans never decrease; the words of
    one source ("$5") share it. Empty when there is nothing to say.
    """
    lowered = {word.lower(): said for word, said in (lexicon or {}).items()}
    out: list[SpokenWord] = []
    for start, end, words in _scan(text, lowered):
        if not words:
            continue
        if words[0] in _KEPT.values():
            if out and out[-1].text[-1] not in ",.?!;:":
                last = out[-1]
                _widen(out, last.source, (last.source[0], base_offset + end), words[0])
            continue
        source = (base_offset + start, base_offset + end)
        out += [SpokenWord(word, source) for said in words for word in said.split()]
    return tuple(out)


def _widen(out: list[SpokenWord], old: tuple[int, int], new: tuple[int, int], mark: str) -> None:
    """Punctuation joins the last word's sound and the source of every word it shares one with."""
    out[-1] = SpokenWord(out[-1].text + mark, new)
    for i in range(len(out) - 2, -1, -1):
        if out[i].source != old:
            break
        out[i] = SpokenWord(out[i].text, new)


def _scan(text: str, lexicon: Mapping[str, str]) -> Iterator[tuple[int, int, list[str]]]:
    for match in _SCANNER.finditer(text):
        kind = next(name for name in _NAMES if match.group(name) is not None)
        if kind == "link":
            at = match.start("label")
            inner = list(_scan(match.group("label"), lexicon))
            for i, (start, end, words) in enumerate(inner):
                last = i == len(inner) - 1
                yield at + start, match.end() if last else at + end, words
        else:
            yield match.start(), match.end(), _say(kind, match, lexicon)


def _say(kind: str, match: re.Match[str], lexicon: Mapping[str, str]) -> list[str]:
    if kind == "word":
        return _word(match.group(), lexicon)
    said = match.group()
    words = _initials(said, lexicon) if kind == "initials" else _HANDLERS[kind](match)
    if kind in _STOPPED and said[-1] == "." and not match.string[match.end() :].strip():
        words = [*words[:-1], words[-1] + "."]  # the abbreviation's stop also ends the sentence
    return words


def _word(text: str, lexicon: Mapping[str, str]) -> list[str]:
    text = text.replace("’", "'").rstrip("'")
    lowered = text.lower()
    if lowered in lexicon:
        return [lexicon[lowered]]
    if lowered.endswith("'s") and lowered[:-2] in lexicon:
        return [lexicon[lowered[:-2]] + "'s"]
    if lowered in abbreviations.STOPLESS and (text[0].isupper() or lowered in ("vs", "etc")):
        return [abbreviations.SPOKEN[lowered]]
    return [text]


def _abbreviation(match: re.Match[str]) -> list[str]:
    short = match["short"]
    if short is None:
        return ["number"]
    if short.islower() and short in abbreviations.CAPITALISED:
        at_end = not match.string[match.end() :].strip()
        return [short + "."] if at_end or match.string[match.end() :][:1].isspace() else [short]
    place = abbreviations.AFTER_NAME.get(short.lower())
    if place and _before_is_name(match) and not _AFTER_IS_NAME.match(match.string, match.end()):
        return [place]
    return [abbreviations.SPOKEN[short.lower()]]


def _before_is_name(match: re.Match[str]) -> bool:
    before = match.string[: match.start()].split()
    return bool(before) and before[-1][0].isupper() and before[-1][-1].isalpha()


def _initials(text: str, lexicon: Mapping[str, str]) -> list[str]:
    bare = text.replace(".", "").lower()
    if bare in lexicon:
        return [lexicon[bare]]
    if bare in abbreviations.SPOKEN:
        return [abbreviations.SPOKEN[bare]]
    return [letter.upper() for letter in bare]


def _plain(text: str) -> str:
    return text.replace(",", "")


def _number(text: str) -> list[str]:
    """A number as written: thousands, decimals, sign, year, or a long string of digits."""
    sign = ["minus"] if text[0] in "-−" else []
    body = _plain(text.lstrip("-−"))
    whole, dot, fraction = body.partition(".")
    if dot:
        return [*sign, *numbers.decimal(whole, fraction)]
    if "," not in text and not sign:
        if len(whole) > 6 or (len(whole) > 1 and whole[0] == "0"):
            return numbers.digits(whole)
        if len(whole) == 4 and 1100 <= int(whole) <= 2099:
            return numbers.year(int(whole))
    return [*sign, *numbers.cardinal(int(whole))]


def _count(text: str) -> list[str]:
    whole, dot, fraction = _plain(text).partition(".")
    return numbers.decimal(whole, fraction) if dot else numbers.cardinal(int(whole))


def _money(match: re.Match[str]) -> list[str]:
    one, many, cent, cents = CURRENCIES[match["sign"]]
    amount = _plain(match["amount"])
    minus = ["minus"] if match.group().startswith("-") else []
    if match["scale"]:
        return [*minus, *_count(amount), SCALES[match["scale"].lower()], many]
    whole, _, fraction = amount.partition(".")
    if len(fraction) not in (0, 2) or (fraction and not cent):
        return [*minus, *numbers.decimal(whole, fraction), many]
    units, hundredths = int(whole), int(fraction or "0")
    words = [*numbers.cardinal(units), one if units == 1 else many] if units else []
    if hundredths:
        small = [*numbers.cardinal(hundredths), cent if hundredths == 1 else cents]
        words = [*words, "and", *small] if words else small
    return minus + (words or ["zero", many])


def _date(month: int, day: int, year: int) -> list[str]:
    return [MONTHS[month - 1], *numbers.ordinal(day), *numbers.year(year)]


def _month_day(match: re.Match[str]) -> list[str]:
    month = next(m for m in MONTHS if m.startswith(match["month"][:3]))
    return [month, *numbers.ordinal(int(match["day"]))]


def _decade(match: re.Match[str]) -> list[str]:
    tens = match["tens"]
    if not match["century"]:
        return numbers.plural(numbers.cardinal(int(tens))) if int(tens) else ["two thousands"]
    year = int(match["century"] + tens)
    return numbers.plural(numbers.year(year) if year >= 1000 else numbers.cardinal(year))


def _fraction(match: re.Match[str]) -> list[str]:
    top, bottom = int(match["top"]), int(match["bottom"])
    if bottom not in _DENOMINATORS or top >= bottom:
        return [*numbers.cardinal(top), *numbers.cardinal(bottom)]  # 24/7, 9/11
    if bottom in _FRACTIONS:
        part = _FRACTIONS[bottom]
        many = {"half": "halves"}.get(part, part + "s")
        return [*numbers.cardinal(top), part if top == 1 else many]
    words = numbers.ordinal(bottom)
    return [*numbers.cardinal(top), *(words if top == 1 else numbers.plural(words))]


def _unit(match: re.Match[str]) -> list[str]:
    one, many = UNITS[match["unit"] or match["tight"]]
    count = match["count"]
    minus = ["minus"] if match["minus"] else []
    return [*minus, *_count(count), one if _plain(count) == "1" else many]


@lru_cache(maxsize=256)
def _address(text: str) -> tuple[str, ...]:
    """A host, path or mail address, sign by sign: example.com/a -> example dot com slash a."""
    names = {".": "dot", "/": "slash", "@": "at", "-": "dash", "_": "underscore", "+": "plus"}
    words: list[str] = []
    for part in re.findall(r"[^\W\d_]+|\d+|[./@\-_+]", text):
        if part in names:
            words.append(names[part])
        elif part.isdecimal():
            words += numbers.digits(part) if len(part) > 2 else numbers.cardinal(int(part))
        else:
            words.append(part)
    return tuple(words)


def _url(match: re.Match[str]) -> list[str]:
    """The host, and the path when it is short: nobody wants to hear a query string."""
    text = re.sub(r"^https?://", "", match.group()).split("?")[0].split("#")[0].rstrip("/")
    host, _, path = text.removeprefix("www.").partition("/")
    return list(_address(text.removeprefix("www.") if 0 < len(path) <= 24 else host))


def _phone(match: re.Match[str]) -> list[str]:
    plus = ["plus"] if match.group().startswith("+") else []
    groups = re.findall(r"\d+", match.group())
    words: list[str] = []
    for i, group in enumerate(groups):
        said = numbers.digits(group)
        if i < len(groups) - 1:
            said[-1] += ","
        words += said
    return plus + words


def _digits(match: re.Match[str]) -> list[str]:
    """Digits inside a word ("B12", "4K")."""
    text = match.group()
    return numbers.digits(text) if len(text) > 3 or text[0] == "0" else numbers.cardinal(int(text))


_HANDLERS: dict[str, Callable[[re.Match[str]], list[str]]] = {
    "abbreviation": _abbreviation,
    "until": lambda m: ["to"],
    "fence": lambda m: [],
    "bullet": lambda m: [],
    "item": lambda m: [*numbers.cardinal(int(m["itemno"]))[:-1], _item_end(m)],
    "url": _url,
    "email": lambda m: list(_address(m.group())),
    "domain": lambda m: list(_address(m.group())),
    "money": _money,
    "isodate": lambda m: _date(int(m["im"]), int(m["id"]), int(m["iy"])),
    "usdate": lambda m: _date(int(m["um"]), int(m["ud"]), _full_year(m["uy"])),
    "monthday": _month_day,
    "time": lambda m: numbers.clock(
        int(m["h24"]), int(m["minute"]), (m["half"] + "m") if m["half"] else ""
    ),
    "hour": lambda m: numbers.clock(int(m["hour12"]), 0, m["half12"] + "m"),
    "phone": _phone,
    "ordinal": lambda m: numbers.ordinal(int(_plain(m["nth"]))),
    "decade": _decade,
    "range": lambda m: [*_number(m["low"]), "to", *_number(m["high"])],
    "fraction": _fraction,
    "measure": _unit,
    "number": lambda m: _number(m.group()),
    "digits": _digits,
    "dots": lambda m: ["."],
    "hashnum": lambda m: ["number"],
    "mark": lambda m: [_KEPT.get(m.group(), ",")],
    "symbol": lambda m: [SYMBOLS[m.group()]],
}


def _item_end(match: re.Match[str]) -> str:
    return numbers.cardinal(int(match["itemno"]))[-1] + "."


def _full_year(text: str) -> int:
    return int(text) if len(text) == 4 else 2000 + int(text)
