"""`voice-agent replay`: a recorded call decides again; printed, compared, kept as a fixture."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from voice_agent.errors import UsageError
from voice_agent.replay.compare import Row, rows
from voice_agent.replay.play import Replayed, replay
from voice_agent.replay.tape import SUFFIX, Recorded, Taken, load, save, thinned


def run_replay(file: Path, save_to: Path | None, console: Console) -> bool:
    """True if every decision is what it was. save_to: a fixture is written there (a folder: under
    the file's name) whose decisions are those of this code. Raises UsageError VA490."""
    recorded = load(file)
    replayed = replay(recorded)
    found = rows(recorded.tape.decisions, replayed.decisions)
    console.print(_table(found))
    n_same = sum(row.same for row in found)
    console.print(f"{n_same} of {len(found)} decisions are the same")
    if replayed.guessed:
        console.print(
            f"{replayed.guessed} questions were not asked then: the nearest answer stood in"
        )
    if save_to is not None:
        path = keep(recorded, replayed, _place(save_to, file))
        console.print(f"kept as {path} ({path.stat().st_size // 1024} KiB)")
    return n_same == len(found)


def keep(recorded: Recorded, replayed: Replayed, path: Path) -> Path:
    """Write the call with what it decides now as what it has to decide, our own voice coarse."""
    recorded.tape.decisions = list(replayed.decisions)
    save(thinned(recorded), path)
    return path


def _place(save_to: Path, file: Path) -> Path:
    path = save_to / file.name if save_to.is_dir() else save_to
    if path.suffix != SUFFIX:
        raise UsageError(f"a recorded call's file ends in {SUFFIX}: {path}", code="VA475")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} to write {path.name} to", code="VA475")
    return path


def _table(found: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 1))
    for name in ("", "then s", "now s", "decision", "turn", "cause", "why"):
        table.add_column(name, no_wrap=name != "why")
    for row in found:
        shown = row.now or row.then
        assert shown is not None
        what, turn, revision, cause = shown.key
        sign = " " if row.same else "±" if row.then and row.now else "+" if row.now else "-"
        table.add_row(
            sign, _time(row.then), _time(row.now), what, f"{turn}.{revision}", cause, _why(row)
        )
    return table


def _time(taken: Taken | None) -> str:
    return "" if taken is None else f"{taken.at_s:.3f}"


def _why(row: Row) -> str:
    shown = row.now or row.then
    assert shown is not None
    facts = {**shown.why}
    if row.then is not None:
        for name in row.changed:
            facts[name] = f"{row.then.why.get(name)} -> {shown.why.get(name)}"
    return " ".join(f"{name}={value}" for name, value in facts.items())
