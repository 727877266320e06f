"""API keys at rest: a file that holds their hashes, and never a key.

A key is 256 random bits, so one round of SHA-256 keeps it: there is nothing to guess. The file is
read again when it changes, so a server that runs takes up new keys and lets revoked ones go.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from voice_agent.errors import UsageError

PREFIX = "va_"
SCOPES = ("admin", "call", "api", "metrics")
"""What a key may open: docs/SECURITY.md."""
_DAY_S = 86_400.0


class KeyRecord(BaseModel):
    """Times are Unix seconds. sha256: of the whole key, in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    sha256: str
    scopes: tuple[str, ...]
    agent: str | None = None
    created: float
    expires: float | None = None
    revoked: bool = False

    def good(self, now: float) -> bool:
        return not self.revoked and (self.expires is None or now < self.expires)


_RECORDS: TypeAdapter[tuple[KeyRecord, ...]] = TypeAdapter(tuple[KeyRecord, ...])


def digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


class KeyFile:
    """Owns one file. A missing file holds no keys."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._seen: tuple[int, int, int] | None = None
        self._records: tuple[KeyRecord, ...] = ()

    def records(self) -> tuple[KeyRecord, ...]:
        """Raises UsageError VA457 for a file that is not readable or is something else."""
        try:
            stat = self.path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._seen:
                self._records = _RECORDS.validate_json(self.path.read_bytes())
                self._seen = seen
        except FileNotFoundError:
            self._seen, self._records = None, ()
        except (OSError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else "it holds something else"
            raise UsageError(
                f"the key file {self.path} cannot be used: {why}", code="VA457"
            ) from None
        return self._records

    def add(
        self,
        name: str,
        scopes: tuple[str, ...] = ("call",),
        agent: str | None = None,
        days: float | None = None,
    ) -> tuple[KeyRecord, str]:
        """The new record, and the key: shown once, and kept nowhere. Raises UsageError VA457."""
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise UsageError(
                f"{unknown[0] if unknown else ''!r} is no scope: {', '.join(SCOPES)}", code="VA457"
            )
        now = self._now()
        key_id = secrets.token_hex(4)
        key = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
        record = KeyRecord(
            id=key_id,
            name=name,
            sha256=digest(key),
            scopes=tuple(sorted(set(scopes))),
            agent=agent,
            created=now,
            expires=None if days is None else now + days * _DAY_S,
        )
        with self._writing():
            self._write((*self.records(), record))
        return record, key

    def revoke(self, key: str) -> KeyRecord:
        """key: an id or a name that one key alone has. Raises UsageError VA457."""
        with self._writing():
            records = self.records()
            found = [r for r in records if key in (r.id, r.name) and not r.revoked]
            if len(found) != 1:
                problem = "several keys have" if found else "no key that is good has"
                raise UsageError(
                    f"{problem} the id or name {key!r}: `voice-agent keys list` shows them",
                    code="VA457",
                )
            gone = found[0].model_copy(update={"revoked": True})
            self._write(tuple(gone if r.id == gone.id else r for r in records))
        return gone

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One writer at a time, among processes too."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise UsageError(
                f"the key file {self.path} cannot be written: {error.strerror}", code="VA457"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, records: tuple[KeyRecord, ...]) -> None:
        draft = self.path.with_name(self.path.name + ".tmp")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_RECORDS.dump_json(records, indent=1, exclude_none=True))
        draft.replace(self.path)
        self._seen = None
