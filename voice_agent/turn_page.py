"""The turn machine's tables as Markdown, for docs/TURNS.md: `python -m voice_agent.turn_page FILE`
puts what they say now between the file's two markers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from .turn_tables import CALLER, FLOOR, FORBIDDEN, Caller, CallerMove, Floor, FloorMove

BEGIN = "<!-- from voice_agent/turn_tables.py: python -m voice_agent.turn_page docs/TURNS.md -->"
END = "<!-- end -->"
S = TypeVar("S", bound=StrEnum)
M = TypeVar("M", bound=StrEnum)


def drawn() -> str:
    """Both tables, each with its diagram, and the pairs that cannot be."""
    never = sorted(f"`{caller}` with `{floor}`" for caller, floor in FORBIDDEN)
    return "\n".join(
        [
            "### The caller", "",
            *_diagram(CALLER, Caller.SILENT), "",
            *_table(CALLER, Caller, CallerMove), "",
            "### The floor", "",
            *_diagram(FLOOR, Floor.IDLE), "",
            *_table(FLOOR, Floor, FloorMove), "",
            f"Pairs that cannot be: {', '.join(never)}.",
        ]
    )  # fmt: skip


def inserted(page: str) -> str:
    """The page with the tables as they are now. Raises ValueError without its two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{drawn()}\n\n{END}{after}"


def _diagram(table: Mapping[S, Mapping[M, S]], start: S) -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    for state, moves in table.items():
        ends: dict[S, list[str]] = {}
        for move, to in moves.items():
            ends.setdefault(to, []).append(move.value)
        lines += [f"    {state} --> {to}: {' / '.join(names)}" for to, names in ends.items()]
    return [*lines, "```"]


def _table(table: Mapping[S, Mapping[M, S]], states: type[S], moves: type[M]) -> list[str]:
    """A row for each move, a column for each state; empty where the move cannot be."""
    rows = ["| | " + " | ".join(f"{state}" for state in states) + " |"]
    rows.append("|---" * (len(states) + 1) + "|")
    for move in moves:
        cells = [str(table[state].get(move, "")) for state in states]
        rows.append(f"| {move} | " + " | ".join(cells) + " |")
    return rows


def main(path: str) -> None:
    page = Path(path)
    page.write_text(inserted(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
