"""Answers of models kept by what was asked, so that the same sound is not computed twice.

What is kept is what a model answered, never how long it took: in virtual time that is the table's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from voice_agent.types import Pcm16, PcmF32

BUSY_S = 30.0


class Kept:
    """A file that processes share, or without a path this process's memory. Key: the model's name,
    what else it was asked, and the sound."""

    def __init__(self, path: Path | None = None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        where = ":memory:" if path is None else str(path)
        self._table = sqlite3.connect(where, timeout=BUSY_S, isolation_level=None)
        self._table.execute("PRAGMA journal_mode = WAL")
        self._table.execute("CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY, value TEXT)")

    @staticmethod
    def key(model: str, asked: str, pcm: PcmF32 | Pcm16 | None = None) -> bytes:
        """pcm: [n]."""
        head = hashlib.sha256(f"{model}\n{asked}\n".encode())
        if pcm is not None:
            head.update(pcm.tobytes())
        return head.digest()

    def get(self, key: bytes) -> Any:
        """None: never kept."""
        row = self._table.execute("SELECT value FROM kept WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, key: bytes, value: Any) -> None:
        """value: of JSON."""
        self._table.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (key, json.dumps(value)))

    def put_pcm(self, key: bytes, pcm: Pcm16) -> None:
        self.put(key, base64.b64encode(pcm.tobytes()).decode())

    def get_pcm(self, key: bytes) -> Pcm16 | None:
        """int16 [n]; None: never kept."""
        known = self.get(key)
        return None if known is None else np.frombuffer(base64.b64decode(known), np.int16)

    def close(self) -> None:
        self._table.close()
