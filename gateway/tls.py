"""The certificate that is served: read again when its files change, without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from voice_agent.errors import UsageError

log = logging.getLogger(__name__)

LOOK_S = 30.0


class ServedCertificate:
    """One TLS context. New connections get the new certificate; live ones go on with theirs."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Two PEM files. Raises UsageError VA459 for a pair that does not work."""
        self._files = (certificate, key)
        self._seen = self._stamp()
        try:
            self.context = _context(certificate, key)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"TLS does not work with {certificate} and {key}: {_words(error)}", code="VA459"
            ) from None

    def refresh(self) -> bool:
        """True when a new pair is served. One that does not work is left alone until it changes."""
        seen = self._stamp()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            _context(*self._files)  # a broken pair must not reach the live context
            self.context.load_cert_chain(*self._files)
        except (OSError, ValueError) as error:
            log.error("the new certificate does not work: %s", _words(error))
            return False
        log.info("a new certificate is served")
        return True

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.refresh()

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, self._files))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError(
        "the key is encrypted: store it without a password, readable by the server only"
    )


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{error.reason or error} (a PEM certificate chain and its own key are needed)"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
