"""How Alembic runs the revisions: on the connection it is given, in that one's transaction."""

from __future__ import annotations

from alembic import context

from voice_agent.history.revisions import VERSION_TABLE
from voice_agent.history.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
