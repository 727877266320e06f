"""The figures as lines of a Markdown table: one row a figure, one column a system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .report import ENOUGH
from .scene import NO_TURNS, Kind

Figure = dict[str, Any]
Pick = Callable[[Figure], Figure | None]
Show = Callable[[Figure], str]

SORTS = {"whole": "own pauses", "unfinished": "unfinished beginnings", "parted": "parted words"}


def rated(figure: Figure) -> str:
    """`4.1 % [1.6, 10.1] (4/97)`; `few` where there are too few events for a goal."""
    if not figure["n"]:
        return "-"
    few = " few" if figure["n"] < ENOUGH else ""
    low, high = 100 * figure["low"], 100 * figure["high"]
    counted = f"({figure['k']}/{figure['n']}{few})"
    return f"{100 * figure['rate']:.1f} % [{low:.1f}, {high:.1f}] {counted}"


def spread(figure: Figure) -> str:
    """`p50 480, p95 760, max 800 (n 200)`; a percentile that n does not allow is left out."""
    parts = [f"{k} {figure[k]}" for k in ("p50", "p95", "max") if figure[k] is not None]
    return ", ".join(parts) + f" (n {figure['n']})" if parts else "-"


def held(figure: Figure) -> str:
    """`12/60, 3.1 a minute, p50 260, max 420 (n 14)`."""
    share = figure["share"]
    if not share["n"]:
        return "-"
    late = f", {figure['over_1200_ms']} over 1.2 s" if figure["over_1200_ms"] else ""
    spans = (
        ""
        if not figure["n"]
        else f", {figure['per_minute']} a minute, " + spread(figure["held_ms"])
    )
    return f"{share['k']}/{share['n']}{spans}{late}"


def errors(figure: Figure) -> str:
    """Words remembered less words played."""
    if not figure["n"]:
        return "-"
    p95 = "" if figure["abs_p95"] is None else f"p95 {figure['abs_p95']}, "
    span = f"{figure['most_below']:+d} to {figure['most_above']:+d}"
    return f"{p95}{span} (n {figure['n']}, over +1: {figure['above_one']})"


class _Table:
    def __init__(self, systems: dict[str, Any]) -> None:
        self._systems = systems
        self.lines = [
            "| | " + " | ".join(systems) + " |",
            "|---|" + "---|" * len(systems),
        ]

    def row(self, label: str, pick: Pick, show: Show = rated, *, made: bool = False) -> None:
        """Left out where no system has it."""
        cells = []
        for body in self._systems.values():
            found = pick((body["synthetic"] if made else body)["detail"])
            cells.append("-" if found is None else show(found))
        if any(cell != "-" for cell in cells):
            mark = " (made sound)" if made else ""
            self.add(label + mark, cells)

    def add(self, label: str, cells: list[str]) -> None:
        self.lines.append(f"| {label} | " + " | ".join(cells) + " |")

    def sorts(self, figure: Callable[[Figure], Figure], *, made: bool = False) -> None:
        """One row for each sort of an event, if there are several."""
        bodies = [b["synthetic"] if made else b for b in self._systems.values()]
        names = sorted({n for b in bodies for n in figure(b["detail"])} - {"all", "by_length"})
        for name in names:
            self.row(f"- {SORTS.get(name, name)}", lambda d, n=name: figure(d).get(n), made=made)  # type: ignore[misc]


def table(systems: dict[str, Any]) -> list[str]:
    """systems: the report's, by name."""
    out = _Table(systems)
    out.row("takeover in pauses", lambda d: d["pause_takeover"]["all"])
    out.sorts(lambda d: d["pause_takeover"])
    for length in ("250-500 ms", "500-800 ms", "800-1300 ms"):
        out.row(f"- {length}", lambda d, n=length: d["pause_takeover"]["by_length"].get(n))  # type: ignore[misc]
    out.row("turns taken", lambda d: d["turn_takeover"])
    out.row("corrections answered", lambda d: d["correction_answered"])
    out.row("response, ms", lambda d: d["response_latency_ms"], spread)
    out.row("- end-of-turn wait", lambda d: d["end_of_turn_wait_ms"], spread)
    out.row("- the rest", lambda d: d["rest_ms"], spread)
    out.row("interruptions that succeed", lambda d: d["interruption_success"]["all"])
    out.sorts(lambda d: d["interruption_success"])
    out.row("- voice yields after, ms", lambda d: d["yield_ms"], spread)
    out.row("- voice gone after, ms", lambda d: d["stop_latency_ms"], spread)
    out.row("- held", lambda d: d["holds"][str(Kind.INTERRUPTION)], held)
    for made in (False, True):
        for kind in NO_TURNS:
            _no_turn(out, kind, made)
        out.row("went on rightly", lambda d: d["resume_success"], made=made)
    out.row("heard-word error", lambda d: d["heard_word_error"], errors)
    out.add("stuck", [str(body["stuck"]) for body in systems.values()])
    return out.lines


def _no_turn(out: _Table, kind: Kind, made: bool) -> None:
    name = str(kind)
    label = f"false stops: {name.replace('_', ' ')}"
    out.row(label, lambda d: d["false_stops"].get(name, {}).get("all"), made=made)
    out.sorts(lambda d: d["false_stops"].get(name, {}), made=made)
    out.row("- held", lambda d: d["holds"].get(name), held, made=made)
