"""`voice-agent drain` and `voice-agent reload`: what an operator asks of a running server."""

from __future__ import annotations

import time

from voice_agent.cli.server_api import ServerApi
from voice_agent.config import Config
from voice_agent.errors import InternalError

POLL_S = 1.0


def run_drain(
    config: Config, seconds: float | None, wait: bool, server: str | None, key: str | None
) -> None:
    """wait: returns once the server is gone. Raises as `ServerApi.post`."""
    api = ServerApi(config, server, key)
    told = api.post("/api/ops/drain", {} if seconds is None else {"seconds": seconds})
    print(
        f"draining: no new calls; {told['live']} live, which may take {told['seconds']:g} s",
        flush=True,
    )
    while wait:
        time.sleep(POLL_S)
        try:
            api.get("/api/ops")
        except InternalError:
            print("the server has ended")
            return


def run_reload(config: Config, server: str | None, key: str | None) -> None:
    """Raises UsageError with the reason when the server keeps what it has."""
    told = ServerApi(config, server, key).post("/api/ops/reload", {})
    taken, waiting = told["taken"], told["waiting"]
    print("for new calls: " + (", ".join(taken) or "nothing has changed"))
    if waiting:
        print("only after a restart: " + ", ".join(waiting))
