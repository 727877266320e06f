"""`voice-agent call`: a running server calls someone."""

from __future__ import annotations

import httpx2

from voice_agent.config import Config
from voice_agent.errors import InternalError, UsageError

ANSWER_S = 75.0  # longer than the server lets it ring


def run_dial(
    config: Config, to: str, agent: str | None, server: str | None, key: str | None
) -> None:
    """Raises UsageError with the server's own words, InternalError VA508 if there is none."""
    base = server or _own_address(config)
    key = key or next(iter(config.server.api_keys), None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"to": to} | ({"agent": agent} if agent else {})
    print(f"calling {to} ...", flush=True)
    try:
        answer = httpx2.post(f"{base}/api/calls", json=body, headers=headers, timeout=ANSWER_S)
    except httpx2.HTTPError as error:
        raise InternalError(
            f"no server answers at {base}: start one with `voice-agent up --sip`, or name it with "
            f"--server ({error})",
            code="VA508",
        ) from error
    if answer.status_code == 200:
        print("answered; the conversation goes on at the server")
        return
    try:
        told = answer.json()["error"]
        code, message = str(told["code"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        code, message = "VA508", f"{base} answered {answer.status_code}: is that this server?"
    raise UsageError(message, code=code if code.startswith("VA") else "VA508")


def _own_address(config: Config) -> str:
    server = config.server
    host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host
    bracketed = f"[{host}]" if ":" in host else host
    return f"{'https' if server.https else 'http'}://{bracketed}:{server.port}"
