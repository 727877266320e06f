"""The one application on the one port: page, API, health and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from .call_port import StackPort
from .config import GatewayConfig, check_bind
from .gateway import Gateway
from .grant import Grant
from .guard import Guard
from .metrics import CONTENT_TYPE
from .openai_http.routes import openai_routes
from .ops import ops_routes
from .page_socket import PATH as PAGE_SOCKET
from .page_socket import page_endpoint, resume_endpoint
from .patience import Crowd, bounded_http
from .realtime_http import realtime_routes
from .realtime_ws import realtime_endpoint
from .rtc_route import RESUME, offer_endpoint, resume_offer_endpoint
from .sip.route import calls_endpoint
from .sip.telephone import Telephone
from .token_route import token_endpoint
from .twilio.socket import PATH as TWILIO
from .twilio.socket import TwilioDoor
from .waiting import line_endpoint

OPEN_PATHS = frozenset(("/healthz", "/readyz", "/api/token", TWILIO, RESUME))
"""What needs no key, beside the page's own files: it tells nothing, or asks for itself."""
PAGE = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/call.js": ("call.js", "text/javascript; charset=utf-8"),
    "/pass.js": ("pass.js", "text/javascript; charset=utf-8"),
    "/socket_call.js": ("socket_call.js", "text/javascript; charset=utf-8"),
    "/worklet.js": ("worklet.js", "text/javascript; charset=utf-8"),
    "/meters.js": ("meters.js", "text/javascript; charset=utf-8"),
    "/transcript.js": ("transcript.js", "text/javascript; charset=utf-8"),
    "/playback.js": ("playback.js", "text/javascript; charset=utf-8"),
    "/waiting.js": ("waiting.js", "text/javascript; charset=utf-8"),
    "/waterfall.js": ("waterfall.js", "text/javascript; charset=utf-8"),
    "/ops": ("ops.html", "text/html; charset=utf-8"),
    "/ops.js": ("ops.js", "text/javascript; charset=utf-8"),
    "/ops.css": ("ops.css", "text/css; charset=utf-8"),
    "/sound.js": ("sound.js", "text/javascript; charset=utf-8"),
    "/words.js": ("words.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def create_app(stack: StackPort, config: GatewayConfig) -> Starlette:
    """Raises UsageError when `config` would leave the door open (see `check_bind`)."""
    check_bind(config)
    gateway = Gateway(stack, config)
    telephone = Telephone(gateway, config.sip) if config.sip is not None else None
    crowd = Crowd(
        config.max_connections, config.max_connections_each, frozenset(config.trusted_proxies)
    )
    gateway.gauge_sources.append(
        lambda: {
            "http_connections": float(len(crowd)),
            "http_connections_refused_total": float(crowd.turned_away),
        }
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            app.state.calls = group
            running = [group.create_task(gateway.pacer.run())]
            if gateway.rtc_workers is not None:
                running.append(group.create_task(gateway.rtc_workers.run()))
                await gateway.rtc_workers.ready()
            if telephone is not None:
                running.append(group.create_task(telephone.run()))
                await telephone.ready()
            try:
                yield
            finally:
                gateway.admission.draining = True
                await gateway.hang_up_all()
                for task in running:
                    task.cancel()

    app = Starlette(
        routes=[
            *(Route(path, _page_file) for path in PAGE_FILES if config.page != "off"),
            Route("/healthz", _healthz),
            Route("/readyz", _readyz),
            Route("/metrics", _metrics),
            Route("/api/agents", _agents),
            Route("/api/token", token_endpoint, methods=["POST"]),
            Route("/rtc/offer", offer_endpoint, methods=["POST"]),
            Route(RESUME, resume_offer_endpoint, methods=["POST"]),
            Route("/rtc/line", line_endpoint, methods=["POST"]),
            Route("/rtc/servers", _ice_servers),
            Route("/api/calls", calls_endpoint, methods=["POST"]),
            WebSocketRoute(PAGE_SOCKET, page_endpoint),
            WebSocketRoute(RESUME, resume_endpoint),
            WebSocketRoute("/v1/realtime", realtime_endpoint),
            WebSocketRoute(TWILIO, TwilioDoor(gateway).serve),
            *ops_routes(),
            *realtime_routes(),
            *openai_routes(gateway),
        ],
        middleware=[
            Middleware(
                Guard,
                doorkeeper=gateway.doorkeeper,
                config=config,
                open_paths=OPEN_PATHS | PAGE_FILES.keys(),
            )
        ],
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    app.state.crowd = crowd
    app.state.telephone = telephone
    app.state.page = {path: (PAGE / name).read_bytes() for path, (name, _) in PAGE_FILES.items()}
    return app


def uvicorn_config(app: Starlette, config: GatewayConfig, **more: Any) -> uvicorn.Config:
    """How this application wants to be served; `more` (TLS files, log settings) is passed on."""
    options: dict[str, Any] = {
        "host": config.host,
        "port": config.port,
        "http": bounded_http(app.state.crowd, config.head_timeout_s, config.write_timeout_s),
        "ws": "websockets-sansio",
        "ws_max_size": config.max_message_bytes,
        "ws_per_message_deflate": False,
        "h11_max_incomplete_event_size": 64 << 10,
        "proxy_headers": bool(config.trusted_proxies),
        "forwarded_allow_ips": list(config.trusted_proxies),
        "server_header": False,
        "access_log": False,
        "log_config": None,
        "lifespan": "on",
        "timeout_graceful_shutdown": 5,
    }
    return uvicorn.Config(app, **(options | more))


async def _page_file(request: Request) -> Response:
    path = request.url.path
    body = request.app.state.page[path]
    headers = {"content-type": PAGE_FILES[path][1], "cache-control": "no-cache"}
    return Response(body, headers=headers)


async def _healthz(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _readyz(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    if gateway.admission.draining:
        return JSONResponse({"status": "draining"}, 503)
    if not gateway.ready:
        return JSONResponse({"status": "loading"}, 503, {"retry-after": "5"})
    return JSONResponse({"status": "ready"})


async def _metrics(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    return Response(gateway.metrics.render(), media_type=CONTENT_TYPE)


async def _agents(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    grant: Grant = request.scope["grant"]
    return JSONResponse(
        {"agents": [n for n in gateway.stack.agent_names() if grant.allows_agent(n)]}
    )


async def _ice_servers(request: Request) -> Response:
    """By which servers the caller may reach us, as its RTCPeerConnection takes them."""
    gateway: Gateway = request.app.state.gateway
    servers = [server.for_client(time.time()) for server in gateway.config.rtc.ice_servers]
    return JSONResponse({"iceServers": servers}, headers={"cache-control": "no-store"})


__all__ = ["create_app", "uvicorn_config"]
