"""`voice-agent up` from a program of one's own."""

from __future__ import annotations

from pathlib import Path

from voice_agent.errors import UsageError

from .agent import Agent
from .parts import Parts
from .protocols import Recognizer, Thinker, Voice


def serve(
    *agents: Agent,
    host: str | None = None,
    port: int | None = None,
    calls: int | None = None,
    config: Path | None = None,
    recognizer: Recognizer | None = None,
    voice: Voice | None = None,
    thinker: Thinker | None = None,
) -> None:
    """Answer calls until SIGTERM or SIGINT, then drain. Blocking.

    agents: the first answers who names none; without any, the agents' folder is used. host, port,
    calls: as the flags of `voice-agent up`; everything else comes from the configuration (file and
    environment). recognizer, voice, thinker: models of one's own instead of the house's.

    Raises `voice_agent.errors.UsageError` and `CapacityError`, as `up` reports them.
    """
    from voice_agent.cli.serve import serve as up
    from voice_agent.config import load_config

    named = {agent.name: agent for agent in agents}
    if len(named) < len(agents):
        raise UsageError("two agents have the same name", code="VA441")
    flags = {"server.host": host, "server.port": port, "server.max_calls": calls}
    parts = Parts(named, recognizer, voice, thinker)
    up(load_config(config, flags).config, parts, lambda: load_config(config, flags).config)
