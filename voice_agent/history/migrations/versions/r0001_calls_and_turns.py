"""Calls, and their turns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "calls",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("transport", sa.String(32), nullable=False),
        sa.Column("began_unix_s", sa.Float, nullable=False),
        sa.Column("ended_unix_s", sa.Float),
        sa.Column("outcome", sa.String(32)),
        sa.Column("fault", sa.String(16)),
    )
    op.create_index("ix_calls_began_unix_s", "calls", ["began_unix_s"])
    op.create_table(
        "turns",
        sa.Column(
            "call",
            sa.String(64),
            sa.ForeignKey("calls.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("n", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("reply", sa.Integer),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("interrupted", sa.Boolean, nullable=False),
        sa.Column("voice_to_voice_ms", sa.Float),
        sa.Column("zero_unix_s", sa.Float, nullable=False),
        sa.Column("trace", sa.JSON, nullable=False),
        sa.Column("transcript", sa.Text),
        sa.Column("reply_text", sa.Text),
        sa.Column("heard", sa.Text),
    )
