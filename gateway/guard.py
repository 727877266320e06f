"""The door of the application: every request and socket passes here before any route runs."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .admission import OWNER, TICKET
from .auth import Doorkeeper, Refusal
from .config import GatewayConfig
from .grant import Grant
from .limits import neighbourhood

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; media-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
ALWAYS_HTTPS = "max-age=31536000"
CALL_PATHS = frozenset(
    ("/rtc/offer", "/rtc/socket", "/rtc/resume", "/v1/realtime", "/v1/realtime/calls")
)
"""Each request here may open a call, or a line for one."""
CROSS_HEADERS = b"authorization, content-type, x-openai-agents-sdk"
"""What pages elsewhere may send, as Realtime clients do; those read `location`, a call's id."""


class Guard:
    """ASGI middleware: Host, Origin, how often, key and scope, then the security headers on every
    answer.

    Behind it `scope["grant"]` says what the caller may do. open_paths need no key; what is sent
    with one counts all the same.
    """

    def __init__(
        self,
        app: ASGIApp,
        doorkeeper: Doorkeeper,
        config: GatewayConfig,
        open_paths: Collection[str],
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._doorkeeper = doorkeeper
        self._config = config
        self._headers = dict(SECURITY_HEADERS)
        if config.public_certificate:
            self._headers["strict-transport-security"] = ALWAYS_HTTPS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        origin = headers.get("origin")
        preflight = scope["type"] == "http" and scope["method"] == "OPTIONS"
        refusal = self._check(scope, headers, preflight)
        cross = origin if origin and self._doorkeeper.allows_cross(origin) else None

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    out[name] = value
                out["vary"] = "Origin"
                if cross:
                    out["access-control-allow-origin"] = cross
                    out["access-control-expose-headers"] = "location"
            await send(message)

        if refusal is not None:
            await _refuse(scope, refusal, guarded_send)
        elif preflight:
            await _preflight(cross is not None, guarded_send)
        elif scope["type"] == "http":
            await self._app(scope, self._patient(receive), guarded_send)
        else:
            await self._app(scope, receive, guarded_send)

    def _check(self, scope: Scope, headers: dict[str, str], preflight: bool) -> Refusal | None:
        keeper = self._doorkeeper
        host = headers.get("host")
        refusal = keeper.check_host(host) or keeper.check_origin(headers.get("origin"), host)
        if refusal is not None or preflight:
            return refusal
        address = neighbourhood(scope["client"][0] if scope["client"] else "")
        limited = keeper.key_required
        if limited and (wait_s := keeper.failures.wait_s(address)):
            return _too_many(wait_s, "wrong keys from this address")
        grant = keeper.identify(headers, scope.get("subprotocols", ()))
        if isinstance(grant, Grant):
            scope["grant"] = grant
            OWNER.set(keeper.owner(grant, address))
            TICKET.set(parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [""])[0])
        elif grant.offered:
            keeper.failures.take(address)
        if limited and (refusal := self._often(scope["path"], address, grant)) is not None:
            return refusal
        if scope["path"] in self._open_paths:
            return None
        return grant if isinstance(grant, Refusal) else keeper.check_scope(grant, scope["path"])

    def _often(self, path: str, address: str, grant: Grant | Refusal) -> Refusal | None:
        keeper, names = self._doorkeeper, {address}
        if isinstance(grant, Grant):
            names.add(keeper.owner(grant, address))
        for name in names:
            if wait_s := keeper.requests.take(name):
                return _too_many(wait_s, "requests")
            if path in CALL_PATHS and (wait_s := keeper.calls.take(name)):
                return _too_many(wait_s, "new calls")
        return None

    def _patient(self, receive: Receive) -> Receive:
        """A body that is whole in time and of bounded size; else it ends as if the client left."""
        deadline = asyncio.get_running_loop().time() + self._config.body_timeout_s
        most = 2 * self._config.max_message_bytes  # the routes' own limits are lower, with words
        n_bytes, whole = 0, False

        async def take() -> Message:
            nonlocal n_bytes, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            n_bytes += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            return message if n_bytes <= most else {"type": "http.disconnect"}

        return take


def _too_many(wait_s: float, what: str) -> Refusal:
    message = f"Too many {what}. Try again in {math.ceil(wait_s)} s."
    return Refusal(429, "rate_limit_exceeded", message, retry_after_s=math.ceil(wait_s))


async def _preflight(allowed: bool, send: Send) -> None:
    headers = [(b"content-length", b"0")]
    if allowed:
        headers += [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", CROSS_HEADERS),
            (b"access-control-max-age", b"600"),
        ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, refusal: Refusal, send: Send) -> None:
    kind = "rate_limit_error" if refusal.status == 429 else "invalid_request_error"
    error = {"code": refusal.code, "message": refusal.message, "type": kind, "param": None}
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.retry_after_s:
        headers.append((b"retry-after", str(refusal.retry_after_s).encode()))
    response = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
            return
        response = "websocket.http.response"
    await send({"type": f"{response}.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{response}.body", "body": body})
