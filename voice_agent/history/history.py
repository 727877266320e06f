"""Follows live calls into the database: one bounded queue, one thread.

A call never waits for the disk. What it tells is put into the queue; when that is full, because
the disk is full, slow, locked or gone, what comes is dropped and counted. The thread tries again
by itself, and is the only one that ever touches the database.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from voice_agent.clock import Clock
from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.events import CallEnded, CallFault, CallStarted, Event, TurnTraced
from voice_agent.line import TRANSPORT
from voice_agent.trace_record import record_of

from .database import Trouble, no_database, reason_of, trouble_of, url_of
from .entries import CallEntry, Entry, TurnEntry
from .store import Store, unsuitable

if TYPE_CHECKING:
    from voice_agent.agent import Call

log = logging.getLogger(__name__)

DAY_S = 86_400.0
BATCH = 128
CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. Entries are gathered for `gather_s`; after a failure the next try is `retry_s` away,
    doubled up to `retry_most_s`; with nothing to write, old calls are looked for each `sweep_s`."""

    gather_s: float = 0.5
    retry_s: float = 1.0
    retry_most_s: float = 30.0
    sweep_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How long, how much, and whether the words too."""

    days: float
    max_bytes: int
    content: bool


class History:
    """Owns the queue, the thread and the store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keep: Keep,
        *,
        size: int = 1024,
        pace: Pace | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """wall: Unix seconds."""
        self.keep = keep
        self._clock = clock
        self._wall = wall
        self._unix_s = wall() - clock.now()
        self._store = store
        self._size = size
        self._pace = pace or Pace()
        self._items: deque[Entry] = deque()
        self._lock = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._down = self._moved = False
        self._told = 0  # of those dropped
        self.written = self.dropped = self.rejected = self.failures = 0
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Look at the database, then begin. A disk that can't be used now is only told of.

        Raises UsageError VA437 for a database that is somebody else's or of a newer version.
        """
        try:
            self._store.prepare()
        except UsageError:
            raise
        except Exception as error:
            if no_database(error):
                raise unsuitable(self._store.name, None) from error
            self._failed(error)
        self._thread.start()

    def follow(self, call: Call) -> None:
        """From now on; before it runs."""
        call.listeners.append(_Follower(self, TRANSPORT.get()).on_event)

    def put(self, entry: Entry) -> None:
        """Never blocks on a disk, never raises."""
        with self._lock:
            if len(self._items) >= self._size or self._closing.is_set():
                self.dropped += 1
                return
            self._items.append(entry)
        self._wake.set()

    def unix_s(self) -> float:
        """Now, on the calls' clock."""
        return self._unix_s + self._clock.now()

    @property
    def zero_unix_s(self) -> float:
        """When the calls' clock was 0."""
        return self._unix_s

    def gauges(self) -> dict[str, float]:
        return {
            "history_up": float(not self._down),
            "history_waiting": float(len(self._items)),
            "history_written_total": float(self.written),
            "history_dropped_total": float(self.dropped),
            "history_rejected_total": float(self.rejected),
            "history_failures_total": float(self.failures),
        }

    def close(self) -> None:
        """Write what waits, for five seconds at most. Blocking, idempotent."""
        self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        pace, retry_s = self._pace, self._pace.retry_s
        while True:
            last = self._closing.is_set()
            self._wake.clear()
            if self._work():
                retry_s = pace.retry_s
                if last:
                    break
                self._wake.wait(pace.sweep_s)
                self._closing.wait(pace.gather_s)
            elif last:
                break
            else:
                self._closing.wait(retry_s)
                retry_s = min(2 * retry_s, pace.retry_most_s)
        self._store.close()

    def _work(self) -> bool:
        """Write everything and delete what is too old or too much. False: it failed."""
        try:
            while True:
                while batch := self._next():
                    self._write(batch)
                before = self._wall() - self.keep.days * DAY_S
                if not self._store.forget(before, self.keep.max_bytes):
                    break
        except Exception as error:
            self._failed(error)
            return False
        if self._down:
            self._down = False
            lost, self._told = self.dropped - self._told, self.dropped
            log.warning("call history: written again, %d records were dropped", lost)
        return True

    def _next(self) -> list[Entry]:
        with self._lock:
            return list(islice(self._items, BATCH))

    def _write(self, batch: Sequence[Entry]) -> None:
        """Entries leave the queue once they are stored; one that is not taken is left out."""
        try:
            self._store.write(batch)
        except Exception as error:
            if trouble_of(error) is not Trouble.ENTRY:
                raise
            if len(batch) > 1:
                half = len(batch) // 2
                self._write(batch[:half])
                self._write(batch[half:])
                return
            self.rejected += 1
            log.error("call history: a record was not taken (%s)", type(error).__name__)
        else:
            self.written += len(batch)
        for _ in batch:
            self._items.popleft()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        aside = None
        if trouble_of(error) is Trouble.DAMAGE and not self._moved:
            self._moved = True  # a disk that damages file after file is not helped by more files
            try:
                aside = self._store.set_aside()
            except OSError as e:
                error = e
        if aside is not None:
            log.error("call history: the database is damaged; it is kept as %s", aside)
        if not self._down:
            self._down = True
            log.warning(
                "call history: %s cannot be written (%s); calls go on, %d records may wait, "
                "further ones are dropped",
                self._store.name, reason_of(error), self._size,
            )  # fmt: skip


class _Follower:
    """One call's events as entries."""

    def __init__(self, history: History, transport: str) -> None:
        self._history = history
        self._transport = transport
        self._call: CallEntry | None = None
        self._n = 0

    def on_event(self, event: Event) -> None:
        history = self._history
        if isinstance(event, CallStarted):
            began = history.unix_s()
            self._call = CallEntry(event.call, event.agent, self._transport, began)
            history.put(self._call)
        call = self._call
        if call is None:
            return
        match event:
            case TurnTraced(trace):
                self._n += 1
                content, zero = history.keep.content, history.zero_unix_s
                record = record_of(trace, content=content, unix_s=zero)
                history.put(TurnEntry(call, self._n, record))
            case CallFault(code=code):
                self._call = replace(call, fault=code)
            case CallEnded(reason=reason):
                now = history.unix_s()
                history.put(replace(call, ended_unix_s=now, outcome=reason.value))


def open_history(config: Config, clock: Clock) -> History | None:
    """What the configuration asks for, begun; None: nothing.

    Raises UsageError VA436 (address, driver), VA437 (a database of something else).
    """
    wanted = config.history
    if not wanted.enabled:
        return None
    keep = Keep(wanted.keep_days, wanted.max_mb << 20, wanted.transcripts)
    history = History(Store(url_of(wanted)), clock, keep, size=wanted.queue)
    history.start()
    return history
