"""The `[history]` section: what is remembered of calls that are over."""

from __future__ import annotations

from pydantic import Field

from .server_section import Section


class HistoryConfig(Section):
    """One row for each call and one for each turn, in a database."""

    enabled: bool = True
    url: str = Field(default="", repr=False)
    """SQLAlchemy's URL of the database; none: the file history.db in the data folder."""
    transcripts: bool = False
    """Whether what was said is remembered too."""
    keep_days: float = Field(default=30.0, gt=0)
    """Older calls are deleted."""
    max_mb: int = Field(default=512, ge=1)
    """Past this size the oldest calls are deleted."""
    queue: int = Field(default=1024, ge=1)
    """Records that may wait for the disk; further ones are dropped and counted."""
