"""Who may enter at all: Host, Origin and key or token, on HTTP and WebSocket alike.

A web page anywhere can open a socket to localhost, and a name it owns can be re-bound to
127.0.0.1; the browser always tells us both, so both are checked before anything else.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from voice_agent.errors import UsageError
from voice_agent.keys import KeyFile, KeyRecord, digest

from .config import GatewayConfig
from .grant import LOCAL, Grant, Scope, of_key
from .limits import Rate
from .tokens import PREFIX as TOKEN_PREFIX
from .tokens import Tokens

log = logging.getLogger(__name__)

Clock = Callable[[], float]
KEY_SUBPROTOCOL = "openai-insecure-api-key."
PAGE = Grant("page", frozenset([Scope.CALL]), frozenset())
"""Whoever opens a public page."""
_SCOPES = (
    ("/metrics", Scope.METRICS),
    ("/ops", Scope.ADMIN),
    ("/api/ops", Scope.ADMIN),
    ("/api/calls", Scope.ADMIN),
    ("/v1/realtime", Scope.CALL),
    ("/v1/", Scope.API),
    ("/", Scope.CALL),
)
"""What the paths below each prefix ask for; the first that fits counts."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """status: HTTP; code: stable; message: what to do. offered: a key or token that is not good."""

    status: int
    code: str
    message: str
    offered: bool = False
    retry_after_s: int = 0


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def scope_of(path: str) -> Scope:
    """What a path asks for; whatever nobody has thought of asks for CALL at least."""
    for prefix, scope in _SCOPES:
        if path.startswith(prefix) and (
            prefix.endswith("/") or path[len(prefix) : len(prefix) + 1] in ("", "/")
        ):
            return scope
    return Scope.ADMIN


class KeyRing:
    """Every key that opens this server, as a hash: those of the configuration and of the file."""

    def __init__(self, api_keys: Iterable[str], file: Path | None, now: Clock = time.time) -> None:
        self._fixed = {f"config{n}": digest(key) for n, key in enumerate(api_keys)}
        self._file = KeyFile(file) if file else None
        self._known: tuple[KeyRecord, ...] = ()
        self._fault = ""
        self._now = now

    def _records(self) -> tuple[KeyRecord, ...]:
        """What the file holds; while it can't be read, what it last held."""
        if self._file is None:
            return ()
        try:
            self._known, self._fault = self._file.records(), ""
        except UsageError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.error("%s; the keys it held before stay good", error)
        return self._known

    @property
    def any(self) -> bool:
        """Whether a key is needed: revoking the last one does not open the door."""
        return bool(self._fixed or self._records())

    def good(self, subject: str) -> bool:
        for record in self._records():
            if record.id == subject:
                return record.good(self._now())
        return subject in self._fixed or (subject == LOCAL.subject and not self.any)

    def find(self, key: str) -> Grant | None:
        """Every key is compared, each in constant time."""
        offered, found = digest(key), None
        for subject, known in self._fixed.items():
            if hmac.compare_digest(offered, known):
                found = of_key(subject, [Scope.ADMIN])
        for record in self._records():
            if hmac.compare_digest(offered, record.sha256) and record.good(self._now()):
                found = of_key(record.id, map(Scope, record.scopes), record.agent)
        return found


class Doorkeeper:
    """Pure checks over header values; knows no framework."""

    def __init__(self, config: GatewayConfig) -> None:
        self.tokens = Tokens(lambda subject: subject == PAGE.subject or self.keys.good(subject))
        self.requests = Rate(config.requests_per_minute)
        self.calls = Rate(config.calls_per_minute)
        self.failures = Rate(config.failures_per_minute)
        self.reconfigure(config)

    def reconfigure(self, config: GatewayConfig) -> None:
        """Other keys, hosts, origins and rates; tokens stay good where their key does."""
        self.requests.change(config.requests_per_minute)
        self.calls.change(config.calls_per_minute)
        self.failures.change(config.failures_per_minute)
        self.keys = KeyRing(config.api_keys, config.keys_file)
        names = (config.host, "localhost", "127.0.0.1", "[::1]")
        own = {f"[{n}]" if ":" in n and not n.startswith("[") else n for n in names}
        self._hosts = {f"{n.lower()}:{config.port}" for n in own}
        if config.port in (80, 443):
            self._hosts |= {n.lower() for n in own}
        self._hosts |= {h.lower() for h in config.allowed_hosts}
        self._any_address = config.host in ("0.0.0.0", "::", "")
        self._port = config.port
        if self._any_address:
            self._hosts.add(f"{socket.gethostname().lower()}:{config.port}")
        self._origins = {o.lower().rstrip("/") for o in config.allowed_origins}

    @property
    def key_required(self) -> bool:
        return self.keys.any

    def check_host(self, host: str | None) -> Refusal | None:
        value = (host or "").lower()
        name, colon, port = value.rpartition(":")
        bare = name if colon and port.isdigit() else value
        if value in self._hosts or bare in self._hosts:
            return None
        if self._any_address and port == str(self._port) and _is_address(name):
            return None  # bound to every address; an address, unlike a name, can't be re-bound
        return Refusal(
            421,
            "host_not_allowed",
            f"This server does not answer to the host name {value[:100]!r}. "
            "Add it to server.allowed_hosts.",
        )

    def check_origin(self, origin: str | None, host: str | None) -> Refusal | None:
        """No Origin (not a browser) and the page's own origin pass."""
        if origin is None or self.allows_cross(origin):
            return None
        scheme, _, place = origin.lower().partition("://")
        if scheme in ("http", "https") and place and place == (host or "").lower():
            return None
        return Refusal(
            403,
            "origin_not_allowed",
            f"Pages of {origin[:100]!r} may not use this server. "
            "Add the origin to server.allowed_origins.",
        )

    def allows_cross(self, origin: str) -> bool:
        return origin.lower().rstrip("/") in self._origins

    def identify(self, headers: Mapping[str, str], subprotocols: Iterable[str]) -> Grant | Refusal:
        """Whose request this is: Bearer header, or the browser's sub-protocol."""
        given = offered_key(headers, subprotocols)
        if given.startswith(TOKEN_PREFIX) and (grant := self.tokens.verify(given)):
            return grant
        if not self.key_required:
            return LOCAL
        if not given:
            words = "Send the server's API key as `Authorization: Bearer KEY`."
            return Refusal(401, "invalid_api_key", words)
        if (grant := self.keys.find(given)) is not None:
            return grant
        if given.startswith(TOKEN_PREFIX):
            words = "This token has expired, or is none of ours: get a new one."
            return Refusal(401, "invalid_token", words, offered=True)
        return Refusal(401, "invalid_api_key", "This API key is not known here.", offered=True)

    def owner(self, grant: Grant, address: str) -> str:
        """Whose calls and requests are counted together; "": nobody's, on a server without keys."""
        if not self.key_required:
            return ""
        return address if grant.subject == PAGE.subject else f"key {grant.subject}"

    def check_scope(self, grant: Grant, path: str) -> Refusal | None:
        scope = scope_of(path)
        if grant.opens(scope):
            return None
        return Refusal(
            403,
            "insufficient_scope",
            f"This key does not open {path[:100]}: it lacks the scope {scope.value!r}.",
        )


def offered_key(headers: Mapping[str, str], subprotocols: Iterable[str]) -> str:
    """The key or token of a request; "" if it has none."""
    scheme, _, offered = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (given := offered.strip()):
        return given
    return next(
        (p[len(KEY_SUBPROTOCOL) :] for p in subprotocols if p.startswith(KEY_SUBPROTOCOL)), ""
    )
