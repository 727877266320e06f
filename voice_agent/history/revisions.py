"""Which revision of the tables a database has, and how it gets to the newest (Alembic)."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

VERSION_TABLE = "history_version"
MIGRATIONS = Path(__file__).parent / "migrations"
VERSIONS = (MIGRATIONS / "versions",)
"""Folders of revisions."""


class Standing(StrEnum):
    """What the tables of a database are to this version."""

    EMPTY = "empty"
    CURRENT = "current"
    OLD = "old"
    UNKNOWN = "unknown"  # of a later version
    FOREIGN = "foreign"  # somebody else's


def standing(connection: sa.Connection) -> Standing:
    options = {"version_table": VERSION_TABLE}
    at = MigrationContext.configure(connection, opts=options).get_current_heads()
    script = ScriptDirectory.from_config(_alembic(connection))
    if not at:
        return Standing.FOREIGN if sa.inspect(connection).get_table_names() else Standing.EMPTY
    if at == tuple(script.get_heads()):
        return Standing.CURRENT
    known = {revision.revision for revision in script.walk_revisions()}
    return Standing.OLD if set(at) <= known else Standing.UNKNOWN


def upgrade(connection: sa.Connection) -> None:
    """To the newest revision, in the connection's transaction: wholly or not at all."""
    command.upgrade(_alembic(connection), "head")


def _alembic(connection: sa.Connection) -> Config:
    config = Config()
    for name, value in (
        ("script_location", str(MIGRATIONS)),
        ("path_separator", "os"),
        ("version_locations", os.pathsep.join(map(str, VERSIONS))),
    ):
        config.set_main_option(name, value.replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
