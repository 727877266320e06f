"""`voice-agent keys`: make, list and revoke API keys."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from voice_agent.config import Config
from voice_agent.keys import KeyFile, KeyRecord
from voice_agent.models import data_dir


def keys_path(config: Config) -> Path:
    return config.server.keys_file or data_dir() / "keys.json"


def run_add(
    config: Config, name: str, scopes: list[str], agent: str | None, days: float | None
) -> None:
    """The key alone on standard output, so that a script can take it."""
    record, key = KeyFile(keys_path(config)).add(name, tuple(scopes), agent, days)
    print(f"key {record.id} ({', '.join(record.scopes)}): shown this once", file=sys.stderr)
    print(key)


def run_list(config: Config) -> None:
    file = KeyFile(keys_path(config))
    table = Table(title=f"keys in {file.path}", title_justify="left")
    for column in ("id", "name", "scopes", "agent", "made", "ends"):
        table.add_column(column, overflow="fold")
    for record in file.records():
        table.add_row(
            record.id,
            record.name,
            " ".join(record.scopes),
            record.agent or "any",
            _day(record.created),
            _end(record),
        )
    Console().print(table)


def run_revoke(config: Config, key: str) -> None:
    record = KeyFile(keys_path(config)).revoke(key)
    print(f"revoked {record.id} ({record.name}) and its tokens")


def _end(record: KeyRecord) -> str:
    if record.revoked:
        return "revoked"
    return _day(record.expires) if record.expires else "never"


def _day(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d")
