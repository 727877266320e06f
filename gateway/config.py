"""The gateway's own settings: frozen, made once at the edge from the server's configuration."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from voice_agent.errors import UsageError
from voice_agent.keys import KeyFile

from .media.echo import EchoMode
from .sip.settings import SipSettings
from .turn_account import turn_account


@dataclass(frozen=True, slots=True)
class EchoModes:
    """Where our own voice is taken out of what the caller's side sends.

    page: the browser's canceller does it. realtime: programs with 24 kHz sound. telephone: G.711.
    """

    page: EchoMode = EchoMode.OFF
    realtime: EchoMode = EchoMode.OFF
    telephone: EchoMode = EchoMode.AUTO

    @property
    def used(self) -> bool:
        return {self.page, self.realtime, self.telephone} != {EchoMode.OFF}


@dataclass(frozen=True, slots=True)
class IceServer:
    """A STUN or TURN server for clients. urls: `turn:host:port?transport=udp` and the like.

    secret: shared with a TURN server; every client then gets an account of its own, for a while.
    """

    urls: tuple[str, ...]
    username: str = ""
    credential: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)

    def for_client(self, now_s: float) -> dict[str, Any]:
        """As a browser's RTCPeerConnection takes it. now_s: since 1970."""
        username, credential = self.username, self.credential
        if self.secret:
            username, credential = turn_account(self.secret, now_s)
        out: dict[str, Any] = {"urls": list(self.urls)}
        if username:
            out |= {"username": username, "credential": credential}
        return out


@dataclass(frozen=True, slots=True)
class RtcNetwork:
    """ports: UDP, the first and the last one; None: any.

    public_address: IPv4, stands in answers instead of our own where a NAT maps it to us, port by
    port. ice_servers: for clients; the server itself asks none.
    """

    ports: tuple[int, int] | None = None
    public_address: str = ""
    ice_servers: tuple[IceServer, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """api_keys: any of them opens everything. keys_file: hashes of further keys. Neither: no key
    (loopback only).

    allowed_hosts: further values of the Host header, `name` (any port) or `name:port`.
    allowed_origins: further pages, as `https://name[:port]`, that may call this server.
    max_http_replies: replies of the HTTP API that one key may have open at once.
    twilio_auth_token: what media streams are signed with; "": they show a key or token.
    page: `key`: asks for one on a keyed server; `public`: needs none; `off`: there is no page.
    trusted_proxies: addresses whose X-Forwarded-For is believed.
    requests_per_minute, calls_per_minute: of one key, and of one address; only with keys; 0: any.
    max_calls_per_key: at once; of a public page: per address. 0: max_calls.
    hold_s: so long a call of the page waits for it when its line was lost; 0: not at all.
    max_waiting: web callers that may wait for a line. admit_s: predicted answer, from a caller's
    last word to our first, past which a further call is not taken.
    public_certificate: one that browsers know, so that they may insist on https from now on.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    keys_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_calls: int = 8
    max_http_replies: int = 64
    max_message_bytes: int = 1 << 20
    max_sdp_bytes: int = 64 << 10
    websocket_lead_ms: int = 100
    media_workers: int = 0
    rtc: RtcNetwork = RtcNetwork()
    connect_timeout_s: float = 20.0
    hold_s: float = 30.0
    twilio_auth_token: str = field(default="", repr=False)
    page: Literal["key", "public", "off"] = "key"
    trusted_proxies: tuple[str, ...] = ()
    requests_per_minute: int = 600
    calls_per_minute: int = 60
    failures_per_minute: int = 20
    max_calls_per_key: int = 0
    max_waiting: int = 8
    admit_s: float = 2.4
    max_connections: int = 512
    max_connections_each: int = 128
    head_timeout_s: float = 10.0
    body_timeout_s: float = 20.0
    write_timeout_s: float = 30.0
    public_certificate: bool = False
    echo: EchoModes = EchoModes()
    sip: SipSettings | None = None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(config: GatewayConfig) -> None:
    """Raises UsageError when others could reach the server and no key is set."""
    if any(len(key) < 16 for key in config.api_keys):
        raise UsageError(
            "an API key must have at least 16 characters: make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`",
            code="VA451",
        )
    in_file = KeyFile(config.keys_file).records() if config.keys_file else ()
    if not is_loopback(config.host) and not config.api_keys and not in_file:
        raise UsageError(
            f"binding {config.host} lets other machines place calls: make an API key "
            "(`voice-agent keys add NAME`), or bind 127.0.0.1",
            code="VA450",
        )
    for origin in config.allowed_origins:
        if "://" not in origin or origin.rstrip("/").count("/") != 2:
            raise UsageError(
                f"allowed_origins: {origin!r} is not an origin; write https://name[:port]",
                code="VA452",
            )
