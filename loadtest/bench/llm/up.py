"""`voice-agent up` as it is live, in a process of its own, beside the benchmark."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping

from loadtest.bench.peers.process import ServerFailed, ServerProcess, free_port

_SERVES_WITHIN_S = 120.0


@contextlib.contextmanager
def served(model: str, settings: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """The server, ready, on the loopback and with no key. Raises `ServerFailed`.

    settings: of its configuration, as `ENGINE__MAX_NUM_SEQS`, with the values as text.
    """
    port = free_port()
    command = [
        sys.executable, "-m", "voice_agent.cli", "up", "--port", str(port), "--no-fetch",
        "--llm", model, "--stt", "whisper-tiny.en", "--voice", "piper-joe",
    ]  # fmt: skip
    chosen = {"HISTORY__ENABLED": "false"} | dict(settings or {})  # the user's own calls are there
    env = os.environ | {f"VOICE_AGENT__{name}": text for name, text in chosen.items()}
    server = ServerProcess("voice-agent up", command, port, env)
    try:
        server.wait_ready()
        until = time.monotonic() + _SERVES_WITHIN_S
        while '"id"' not in server.get("/v1/models"):
            if time.monotonic() > until:
                raise ServerFailed("voice-agent up serves no model")
            time.sleep(0.5)
        yield server
    finally:
        server.close()


def metric(text: str, name: str) -> float:
    """A plain figure of what `/metrics` answered. Raises `ServerFailed` if it is not among them."""
    found = re.search(rf"^voice_agent_{name} (\S+)", text, re.MULTILINE)
    if found is None:
        raise ServerFailed(f"the server's metrics have no {name}")
    return float(found.group(1))
