"""The operator's view: who is on the line, what each stage holds, whether anything is turned away.

No words of any call are in it. The page `/ops` reads it once a second; `admin` opens it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voice_agent.events import EndReason

from .gateway import Gateway, LiveCall

STAGES = {
    "Listening": "vad_",
    "Recognition": "stt_",
    "Language model": "engine_",
    "Voice": "voice_",
    "Early work": "early_",
    "Media": "pacer_",
}
"""Heading -> what the names of its numbers begin with; the rest stands under "Server"."""

EARLY_WORK = ("on", "no voice: busy", "none: busy")
"""By `early_shed`: what of it stops under load."""


def ops_routes() -> list[Route]:
    return [
        Route("/api/ops", _ops),
        Route("/api/ops/calls/{call_id}/hangup", _hang_up, methods=["POST"]),
    ]


def overview(gateway: Gateway) -> dict[str, Any]:
    """JSON of this moment. Times are seconds or ms as named; `kv` is None without an engine."""
    gauges, admission = gateway.gauges(), gateway.admission
    return {
        "ready": gateway.stack.ready and not admission.draining,
        "draining": admission.draining,
        "calls": {
            "live": admission.active,
            "limit": admission.max_calls,
            "refused": admission.refused,
        },
        "early_work": EARLY_WORK[int(gauges.get("early_shed", 0))],
        "kv": _kv(gauges),
        "live": sorted(map(_call, gateway.live), key=lambda call: -call["age_s"]),
        "stages": _stages(gauges),
    }


def _kv(gauges: Mapping[str, float]) -> dict[str, int] | None:
    names = ("total", "free", "cached", "held", "pinned", "fenced")
    if "engine_kv_blocks_total" not in gauges:
        return None
    return {name: int(gauges[f"engine_kv_blocks_{name}"]) for name in names}


def _call(live: LiveCall) -> dict[str, Any]:
    line: dict[str, Any] = {"id": live.id, "transport": live.transport, "age_s": 0.0}
    if live.call is None:
        return line | {"agent": "", "caller": "connecting", "floor": "", "turns": 0}
    seen = live.call.glance()
    return line | {
        "agent": seen.agent,
        "caller": seen.caller,
        "floor": seen.floor,
        "age_s": round(seen.age_s, 1),
        "turns": seen.turns,
        "voice_to_voice_ms": seen.voice_to_voice_ms,
    }


def _stages(gauges: Mapping[str, float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {heading: {} for heading in (*STAGES, "Server")}
    for name, value in sorted(gauges.items()):
        heading = next((h for h, prefix in STAGES.items() if name.startswith(prefix)), "Server")
        found[heading][name.removeprefix(STAGES.get(heading, ""))] = round(value, 3)
    return {heading: numbers for heading, numbers in found.items() if numbers}


async def _ops(request: Request) -> Response:
    return JSONResponse(overview(request.app.state.gateway), headers={"cache-control": "no-store"})


async def _hang_up(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    wanted = request.path_params["call_id"]
    for live in list(gateway.live):
        if live.id == wanted:
            live.hang_up(EndReason.OPERATOR)
            return Response(status_code=204)
    error = {
        "code": "no_such_call",
        "message": "No live call has this id: it may have ended just now.",
    }
    return JSONResponse({"error": error}, 404)
