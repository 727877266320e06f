"""`voice-agent call`: a running server calls someone."""

from __future__ import annotations

from voice_agent.cli.server_api import ServerApi
from voice_agent.config import Config

ANSWER_S = 75.0  # longer than the server lets it ring


def run_dial(
    config: Config, to: str, agent: str | None, server: str | None, key: str | None
) -> None:
    """Raises UsageError with the server's own words, InternalError VA508 if there is none."""
    print(f"calling {to} ...", flush=True)
    body = {"to": to} | ({"agent": agent} if agent else {})
    ServerApi(config, server, key).post("/api/calls", body, ANSWER_S)
    print("answered; the conversation goes on at the server")
