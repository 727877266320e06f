"""The tables of this version; the revisions in `migrations/versions` lead to exactly these.

A turn's columns are copies out of its one record, for searching; the record itself is in `trace`
without the words. Those are in columns of their own, empty unless transcripts are enabled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from voice_agent.trace_record import CONTENT

METADATA = sa.MetaData()

CALLS = sa.Table(
    "calls",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("transport", sa.String(32), nullable=False),
    sa.Column("began_unix_s", sa.Float, nullable=False, index=True),
    sa.Column("ended_unix_s", sa.Float),
    sa.Column("outcome", sa.String(32)),
    sa.Column("fault", sa.String(16)),
)

TURNS = sa.Table(
    "turns",
    METADATA,
    sa.Column("call", sa.ForeignKey("calls.id", ondelete="CASCADE"), primary_key=True),
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

COPIED = ("turn", "revision", "reply", "outcome", "interrupted", "voice_to_voice_ms", "zero_unix_s")
"""Columns of a turn that its record has under the same name."""


def turn_row(call: str, n: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `turns` from the turn's record; words that are not in it stay NULL."""
    trace = {name: value for name, value in record.items() if name not in CONTENT}
    words = {name: _storable(record[name]) if record[name] else None for name in CONTENT}
    return {
        "call": call,
        "n": n,
        **{name: record[name] for name in COPIED},
        "trace": trace,
        **words,
    }


def _storable(text: str) -> str:
    """Without what no database takes as text: NUL and halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
