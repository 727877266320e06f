"""The door of the application: every request and socket passes here before any route runs."""

from __future__ import annotations

import json
from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import Doorkeeper, Refusal
from .grant import Grant

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


class Guard:
    """ASGI middleware: Host, Origin, key, then the security headers on every answer.

    Behind it `scope["grant"]` says what the caller may do. open_paths need no key; what is sent
    with one counts all the same.
    """

    def __init__(self, app: ASGIApp, doorkeeper: Doorkeeper, open_paths: Collection[str]) -> None:
        self._app = app
        self._open_paths = open_paths
        self._doorkeeper = doorkeeper

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
                for name, value in SECURITY_HEADERS.items():
                    out[name] = value
                out["vary"] = "Origin"
                if cross:
                    out["access-control-allow-origin"] = cross
            await send(message)

        if refusal is not None:
            await self._refuse(scope, refusal, guarded_send)
        elif preflight:
            await self._preflight(cross is not None, guarded_send)
        else:
            await self._app(scope, receive, guarded_send)

    def _check(self, scope: Scope, headers: dict[str, str], preflight: bool) -> Refusal | None:
        keeper = self._doorkeeper
        host = headers.get("host")
        refusal = keeper.check_host(host) or keeper.check_origin(headers.get("origin"), host)
        if refusal is not None or preflight:
            return refusal
        grant = keeper.identify(headers, scope.get("subprotocols", ()))
        if isinstance(grant, Grant):
            scope["grant"] = grant
        if scope["path"] in self._open_paths:
            return None
        return grant if isinstance(grant, Refusal) else keeper.check_scope(grant, scope["path"])

    async def _preflight(self, allowed: bool, send: Send) -> None:
        headers = [(b"content-length", b"0")]
        if allowed:
            headers += [
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-allow-headers", b"authorization, content-type"),
                (b"access-control-max-age", b"600"),
            ]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _refuse(self, scope: Scope, refusal: Refusal, send: Send) -> None:
        error = {
            "code": refusal.code, "message": refusal.message,
            "type": "invalid_request_error", "param": None,
        }  # fmt: skip
        body = json.dumps({"error": error}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if refusal.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        kind = "http.response"
        if scope["type"] == "websocket":
            if "websocket.http.response" not in scope.get("extensions", {}):
                await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
                return
            kind = "websocket.http.response"
        await send({"type": f"{kind}.start", "status": refusal.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})
