"""The operator's view: who is on the line, what each stage holds, whether anything is turned away.

No words of any call are in it. The page `/ops` reads it once a second; `admin` opens it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voice_agent.errors import UsageError
from voice_agent.events import EndReason
from voice_agent.shedding import WORDS

from .gateway import MOST_S, Controls, Gateway, LiveCall

STAGES = {
    "Listening": "vad_",
    "Recognition": "stt_",
    "Language model": "engine_",
    "Voice": "voice_",
    "Early work": "early_",
    "Load": "load_",
    "Use of the stages": "stage_",
    "Media": "pacer_",
}
"""Heading -> what the names of its numbers begin with; the rest stands under "Server"."""

MAX_DRAIN_S = 86_400

EARLY_WORK = ("on", "no voice: busy", "none: busy")
"""By `early_shed`: what of it stops under load."""


def ops_routes() -> list[Route]:
    return [
        Route("/api/ops", _ops),
        Route("/api/ops/calls/{call_id}/hangup", _hang_up, methods=["POST"]),
        Route("/api/ops/drain", _drain, methods=["POST"]),
        Route("/api/ops/reload", _reload, methods=["POST"]),
    ]


def overview(gateway: Gateway) -> dict[str, Any]:
    """JSON of this moment. Times are seconds or ms as named; `kv` is None without an engine."""
    queue = gateway.waiting.seen()
    gauges, admission = gateway.gauges(), gateway.admission
    return {
        "ready": gateway.ready,
        "draining": admission.draining,
        "calls": {
            "live": admission.active,
            "limit": admission.max_calls,
            "refused": admission.refused,
        },
        "early_work": EARLY_WORK[int(gauges.get("early_shed", 0))],
        "load": _load(gateway),
        "kv": _kv(gauges),
        "live": sorted(map(_call, gateway.live), key=lambda call: -call["age_s"]),
        "waiting": [
            {
                "place": place,
                "waited_s": round(waiting.waited_s, 1),
                "wait_s": round(waiting.wait_s, 1),
                "line_kept": waiting.kept,
            }
            for place, waiting in enumerate(queue, 1)
        ],
        "stages": _stages(gauges),
    }


def _load(gateway: Gateway) -> dict[str, Any]:
    """What load has stopped, who waits, and the latest decisions about calls, the newest first."""
    outlook = gateway.stack.outlook(gateway.admission.active)
    now_s, decisions = gateway.clock.now(), reversed(gateway.admission.decisions)
    return {
        "stopped": WORDS[gateway.stack.shed],
        "answer_ms": round(1000 * min(MOST_S, outlook.answer_s())),
        "with_one_more_ms": round(1000 * min(MOST_S, outlook.answer_s(1))),
        "waiting": len(gateway.waiting),
        "stages": {stage.name: round(100 * stage.busy) for stage in outlook.stages},
        "decisions": [
            {
                "ago_s": round(now_s - made.at_s, 1),
                "transport": made.transport,
                "taken": not made.why,
                "why": made.why,
                "live": made.live,
            }
            for made in decisions
        ],
    }


def _kv(gauges: Mapping[str, float]) -> dict[str, int] | None:
    names = ("total", "free", "cached", "held", "pinned", "fenced")
    if "engine_kv_blocks_total" not in gauges:
        return None
    return {name: int(gauges[f"engine_kv_blocks_{name}"]) for name in names}


def _call(live: LiveCall) -> dict[str, Any]:
    """kept_s: of a call that has lost its line, so long its page may still come back."""
    kept_s = live.kept_s()
    line: dict[str, Any] = {
        "id": live.id,
        "transport": live.transport,
        "age_s": 0.0,
        "kept_s": None if kept_s is None else round(kept_s, 1),
    }
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


async def _drain(request: Request) -> Response:
    """`{"seconds": N}` or nothing: no new calls from now on, and the end when live ones are over or
    the time is."""
    controls = _controls(request)
    if isinstance(controls, Response):
        return controls
    try:
        body = await request.body()
        asked = json.loads(body) if body else {}
        seconds = asked.get("seconds")
        if seconds is not None and not 0 <= float(seconds) <= MAX_DRAIN_S:
            raise ValueError
    except (ValueError, TypeError, AttributeError, ClientDisconnect):
        words = f'Send JSON: {{"seconds": 0 to {MAX_DRAIN_S}}}, or nothing.'
        return _error(400, "VA491", words)
    limit_s = controls.drain(None if seconds is None else float(seconds))
    live = request.app.state.gateway.admission.active
    return JSONResponse({"draining": True, "live": live, "seconds": limit_s}, 202)


async def _reload(request: Request) -> Response:
    controls = _controls(request)
    if isinstance(controls, Response):
        return controls
    try:
        done = controls.reload()
    except UsageError as error:
        return _error(409, error.code, str(error.args[0]))
    return JSONResponse({"taken": done.taken, "waiting": done.waiting})


def _controls(request: Request) -> Controls | Response:
    gateway: Gateway = request.app.state.gateway
    if gateway.controls is None:
        return _error(501, "VA492", "This server is run by a program that keeps that to itself.")
    return gateway.controls


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status)
