"""Who may enter at all: Host, Origin and API key, on HTTP and WebSocket alike.

A web page anywhere can open a socket to localhost, and a name it owns can be re-bound to
127.0.0.1; the browser always tells us both, so both are checked before anything else.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .config import GatewayConfig

KEY_SUBPROTOCOL = "openai-insecure-api-key."


@dataclass(frozen=True, slots=True)
class Refusal:
    """status: HTTP; code: stable; message: what to do."""

    status: int
    code: str
    message: str


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class Doorkeeper:
    """Pure checks over header values; knows no framework."""

    def __init__(self, config: GatewayConfig) -> None:
        self._keys = tuple(key.encode() for key in config.api_keys)
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
        return bool(self._keys)

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

    def check_key(self, headers: Mapping[str, str], subprotocols: Iterable[str]) -> Refusal | None:
        """Bearer header, or the browser's sub-protocol. Every key is compared, in constant time."""
        if not self._keys:
            return None
        scheme, _, offered = headers.get("authorization", "").partition(" ")
        given = offered.strip() if scheme.lower() == "bearer" else ""
        if not given:
            given = next(
                (p[len(KEY_SUBPROTOCOL) :] for p in subprotocols if p.startswith(KEY_SUBPROTOCOL)),
                "",
            )
        matches = [hmac.compare_digest(given.encode(), key) for key in self._keys]
        if any(matches):
            return None
        return Refusal(
            401,
            "invalid_api_key",
            "Send the server's API key as `Authorization: Bearer KEY`."
            if not given
            else "This API key is not known here.",
        )
