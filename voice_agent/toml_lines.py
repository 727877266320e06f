"""Which line of a TOML text sets which key; for error messages that point at the place."""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEADER = re.compile(r"^\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[^\s=.]+)*)\s*=""")
_PIECE = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")

Key = tuple[str, ...]


def key_lines(text: str) -> dict[Key, int]:
    """(section, ..., key) -> 1-based line, for sections too. `text` must be valid TOML."""
    lines: dict[Key, int] = {}
    section: Key = ()
    open_quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if open_quote:
            if line.count(open_quote) % 2 == 1:
                open_quote = ""
            continue
        if header := _HEADER.match(line):
            section = _split(header[1])
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            lines.setdefault(section + _split(key[1]), number)
        for quote in ('"""', "'''"):
            if line.count(quote) % 2 == 1:
                open_quote = quote
    return lines


def line_of(lines: dict[Key, int], path: Sequence[str | int]) -> int | None:
    """The line of a key, else of the nearest table around it."""
    key = tuple(str(p) for p in path)
    while key:
        if key in lines:
            return lines[key]
        key = key[:-1]
    return None


def _split(dotted: str) -> Key:
    return tuple(piece.strip("\"'") for piece in _PIECE.findall(dotted))
