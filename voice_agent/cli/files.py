"""`config show` and `init`: the two files an operator writes."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from voice_agent.agent_file import load_agent, shipped_agent
from voice_agent.config import Loaded
from voice_agent.errors import UsageError


def run_config_show(loaded: Loaded) -> None:
    """One row per value."""
    title = f"file: {loaded.file}" if loaded.file else "no configuration file"
    table = Table(title=title, title_justify="left")
    for column in ("key", "value", "from"):
        table.add_column(column, overflow="fold")
    for row in loaded.rows():
        table.add_row(*row)
    Console().print(table)


def run_init(name: str, folder: Path, *, force: bool) -> None:
    """Write folder/NAME.toml. Raises UsageError VA444 when it is there already."""
    path = folder / f"{name}.toml"
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"{name!r} is not a name for an agent", code="VA444")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; use --force to overwrite it", code="VA444")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(shipped_agent().read_text("utf-8"), "utf-8")
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e}", code="VA444") from e
    load_agent(path)
    print(f"wrote {path}; talk to it with: voice-agent up --agent {name}")
