"""A history on a disk that goes bad, in a process of its own: limits and rights are a process's.

python -m tests.support.history_child FOLDER    prints what came of it, as JSON
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from pathlib import Path
from typing import Any

from tests.support.history import call, ended, history, rows, turn, url, wait_until
from voice_agent.history.history import History
from voice_agent.history.store import Store

N_BAD = 12  # more than the queue takes


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def outage(path: Path, begin: Any, end: Any) -> dict[str, Any]:
    """Some turns while all is well, too many while it is not, one after it."""
    lines = Lines()
    logging.getLogger("voice_agent.history").addHandler(lines)
    kept = history(Store(url(path)), content=True, size=8)
    kept.start()
    kept.put(call())
    kept.put(turn(1))
    wait_until(lambda: kept.written == 2)
    begin()
    for n in range(2, 2 + N_BAD):
        kept.put(turn(n, content=True, words="x" * 20_000))
    wait_until(lambda: kept.failures >= 3)
    down = kept.gauges()
    end()
    wait_until(lambda: _well(kept))
    kept.put(ended())
    kept.close()
    logging.getLogger("voice_agent.history").removeHandler(lines)
    return {
        "down": down,
        "after": kept.gauges(),
        "lines": lines.texts,
        "turns": [n for (n,) in rows(path, "SELECT n FROM turns ORDER BY n")],
        "outcomes": [o for (o,) in rows(path, "SELECT outcome FROM calls")],
        "intact": rows(path, "PRAGMA integrity_check")[0][0],
    }


def _well(kept: History) -> bool:
    gauges = kept.gauges()
    return gauges["history_up"] == 1.0 and gauges["history_waiting"] == 0.0


def no_larger_files(folder: Path) -> dict[str, Any]:
    path = folder / "limit.db"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))

    return outage(path, begin, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))


def no_right(folder: Path) -> dict[str, Any]:
    path = folder / "rights.db"
    return outage(path, lambda: path.chmod(0o000), lambda: path.chmod(0o600))


def no_right_to_the_folder(folder: Path) -> dict[str, Any]:
    inner = folder / "inner"
    inner.mkdir()
    return outage(inner / "h.db", lambda: inner.chmod(0o000), lambda: inner.chmod(0o700))


if __name__ == "__main__":
    troubles = (no_larger_files, no_right, no_right_to_the_folder)
    print(json.dumps({trouble.__name__: trouble(Path(sys.argv[1])) for trouble in troubles}))
