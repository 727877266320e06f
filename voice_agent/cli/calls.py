"""`voice-agent calls`: what is remembered of calls that are over."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.history.database import no_database, reason_of, url_of
from voice_agent.history.export import to_csv, to_json
from voice_agent.history.reader import Overview, Reader, Which
from voice_agent.history.revisions import Standing
from voice_agent.history.store import Store, unsuitable

DAY_S = 86_400.0
FORMATS = {"json": to_json, "csv": to_csv}
UNFINISHED = "unfinished"
"""Of a call that lives, or whose end could not be written."""


def run_list(config: Config, limit: int, which: Which) -> None:
    reader = Reader(url_of(config.history))
    table = Table(title=f"calls in {reader.name}", title_justify="left")
    for name in ("call", "began (UTC)", "length", "agent", "transport", "outcome", "turns"):
        table.add_column(name, overflow="fold")
    table.add_column("voice to voice", justify="right")
    for seen in reader.latest(limit, which):
        table.add_row(*map(Text, _cells(seen)))
    Console().print(table)


def run_show(config: Config, call: str) -> None:
    """One call: a line, then a line for each turn, its words below where they were kept."""
    reader = Reader(url_of(config.history))
    seen = reader.find(call)
    console = Console()
    head = dict(zip(("call", "began", "length", "agent", "transport"), _cells(seen), strict=False))
    head["outcome"] = seen.call.outcome or UNFINISHED
    if seen.call.fault:
        head["error"] = seen.call.fault
    console.print(*(f"{name} {_printable(value)}" for name, value in head.items()), sep="  ",
                  markup=False, highlight=False)  # fmt: skip
    table = Table()
    for name in ("", "turn", "outcome", "voice to voice", "stages, ms", "tokens", "words"):
        table.add_column(name, overflow="fold")
    for record in reader.turns(seen.call.id):
        table.add_row(*map(Text, _turn(record)))
    console.print(table)


def run_export(config: Config, fmt: str, out: Path | None, which: Which) -> None:
    """Raises UsageError VA475 for a file that cannot be written."""
    reader = Reader(url_of(config.history))
    with _output(out) as file:
        n = FORMATS[fmt](reader.each(which), file)
    print(f"{n} calls", file=sys.stderr)


def run_migrate(config: Config) -> None:
    """Raises UsageError VA436 to VA438."""
    store = Store(url_of(config.history))
    try:
        was = store.prepare()
    except SQLAlchemyError as error:
        if no_database(error):
            raise unsuitable(store.name, None) from None
        raise UsageError(f"{store.name}: {reason_of(error)}", code="VA436") from None
    finally:
        store.close()
    done = "was up to date" if was is Standing.CURRENT else "is up to date now"
    print(f"{store.name} {done}")


def which_calls(agent: str | None, outcome: str | None, days: float | None) -> Which:
    since = None if days is None else time.time() - days * DAY_S
    return Which(agent, outcome, since)


def _cells(seen: Overview) -> list[str]:
    call = seen.call
    length = "" if call.ended_unix_s is None else f"{call.ended_unix_s - call.began_unix_s:.0f} s"
    outcome = (call.outcome or UNFINISHED) + (f" ({call.fault})" if call.fault else "")
    began = dt.datetime.fromtimestamp(call.began_unix_s, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    median = "" if seen.voice_to_voice_ms is None else f"{seen.voice_to_voice_ms:.0f} ms"
    return [call.id, began, length, call.agent, call.transport, outcome, str(seen.turns), median]


def _turn(record: dict[str, Any]) -> list[str]:
    total = record["voice_to_voice_ms"]
    stages = " ".join(f"{name} {ms:.0f}" for name, ms in record["stages"].items())
    tokens = f"{record['prompt_tokens']} ({record['cached_tokens']} cached), "
    words = [
        f"caller: {record['transcript']}" if record["transcript"] else "",
        f"heard: {record['heard']}" if record["heard"] else "",
    ]
    said = "\n".join(filter(None, words)) or f"{record['heard_words']} of {record['reply_words']}"
    return [
        str(record["n"]),
        f"{record['turn']}.{record['revision']}",
        record["outcome"] + (", interrupted" if record["interrupted"] else ""),
        "" if total is None else f"{total:.0f} ms",
        stages,
        f"{tokens}{record['output_tokens']}",
        "\n".join(_printable(line) for line in said.split("\n")),
    ]


def _printable(text: str) -> str:
    """What callers said and typed must not steer a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that its owner alone may read."""
    if path is None:
        yield sys.stdout
        return
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}", code="VA475") from None
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
        yield file
