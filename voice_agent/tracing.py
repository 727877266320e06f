"""Where turn records go besides the log: JSON lines and spans, from one bounded queue.

A call never waits for a disk or a collector: it puts a record into the queue, or it is dropped and
counted. A sink that fails is logged at most once a minute and disturbs no other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO

from .clock import Clock
from .config import Config
from .errors import UsageError
from .trace import TurnTrace
from .trace_record import record_of

log = logging.getLogger(__name__)

COMPLAIN_S = 60.0
CLOSE_S = 5.0
FILE = "turns.jsonl"

Record = Mapping[str, Any]


class Sink(Protocol):
    """Called on the tracing thread only; may raise anything."""

    def write(self, record: Record) -> None: ...
    def close(self) -> None: ...


class Tracing:
    """Owns the queue and the thread that empties it into the sinks.

    content: whether records keep what was said. wall: Unix seconds.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        clock: Clock,
        *,
        content: bool,
        size: int = 1024,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._sinks = tuple(sinks)
        self._content = content
        self._unix_s = wall() - clock.now()
        self._queue: queue.Queue[Record | None] = queue.Queue(size)
        self._complained_s = float("-inf")
        self._closing = threading.Event()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def turn(self, trace: TurnTrace) -> None:
        """Never blocks, never raises."""
        try:
            record = record_of(trace, content=self._content, unix_s=self._unix_s)
            self._queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, for five seconds at most. Blocking, idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(queue.Full):  # the thread sees `_closing` once it is empty
            self._queue.put_nowait(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            try:
                record = self._queue.get(timeout=1.0)
            except queue.Empty:
                record = None
            if record is not None:
                for sink in self._sinks:
                    self._guarded(sink, partial(sink.write, record))
            elif self._closing.is_set():
                break
        for sink in self._sinks:
            self._guarded(sink, sink.close)

    def _guarded(self, sink: Sink, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:
            now = time.monotonic()
            if now - self._complained_s >= COMPLAIN_S:
                self._complained_s = now
                log.exception("%s lost a turn's record", type(sink).__name__)


class JsonLines:
    """`turns.jsonl` in a folder, readable by its owner only; a full file is set aside by its time
    and the oldest beyond `keep` are deleted."""

    def __init__(
        self, folder: Path, *, rotate_bytes: int, keep: int, wall: Callable[[], float] = time.time
    ) -> None:
        """Raises UsageError VA433 for a folder that cannot be used."""
        self._folder = folder
        self._limit = rotate_bytes
        self._keep = keep
        self._wall = wall
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = self._open()
        except OSError as e:
            raise UsageError(f"trace.folder {folder} cannot be used: {e}", code="VA433") from e

    def write(self, record: Record) -> None:
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
        if self._file.closed:  # the last rotation failed
            self._file = self._open()
        if self._file.tell() and self._file.tell() + len(line.encode()) > self._limit:
            self._rotate()
        self._file.write(line)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> TextIO:
        file = open(self._folder / FILE, "a", encoding="utf-8", opener=_private)  # noqa: SIM115
        file.seek(0, 2)
        return file

    def _rotate(self) -> None:
        self._file.close()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._wall()))
        same = sorted(self._folder.glob(f"turns-{stamp}-*.jsonl"))
        n = int(same[-1].stem.rsplit("-", 1)[1]) + 1 if same else 0
        (self._folder / FILE).replace(self._folder / f"turns-{stamp}-{n:03}.jsonl")
        for old in sorted(self._folder.glob("turns-*.jsonl"))[: -self._keep]:
            old.unlink()
        self._file = self._open()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def open_tracing(config: Config, clock: Clock) -> Tracing | None:
    """What the configuration asks for; None: nothing.

    Raises UsageError VA433 (folder), VA434 (`trace.otlp` without the extra `otel`).
    """
    sinks: list[Sink] = []
    if config.trace.folder is not None:
        rotate = config.trace.rotate_mb << 20
        sinks.append(
            JsonLines(config.trace.folder, rotate_bytes=rotate, keep=config.trace.keep_files)
        )
    if config.trace.otlp:
        from .spans import otlp_spans

        sinks.append(otlp_spans(config.trace.otlp))
    if not sinks:
        return None
    return Tracing(sinks, clock, content=config.privacy.content, size=config.trace.queue)
