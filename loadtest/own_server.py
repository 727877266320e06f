"""A server of the load test's own: a process like `voice-agent up`, or models in this one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil

from loadtest.options import Options
from loadtest.plan import PlannedCall
from loadtest.scenario import Scenario
from voice_agent.errors import InternalError, UsageError

READY_WITHIN_S = 300
STOP_WITHIN_S = 60
RTP_PORTS_PER_CALL = 4
HELD = "held.jsonl"
SCRIPT_CONTEXT = 65_536
"""Tokens, which a scripted model has none of: the longest instructions of a scenario fit."""
_LINES_AHEAD = 4
"""Beside those that are planned: a call that ends and the next one overlap."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the calls go. http: its address. pid: of the server's process if it is on this
    machine. traces: the folder of its turn records if we may read them. held: what its process
    held, if that is written down (`loadtest.held`)."""

    http: str
    sip: tuple[str, int] | None = None
    pid: int | None = None
    traces: Path | None = None
    held: Path | None = None

    @property
    def ws(self) -> str:
        return self.http.replace("http", "ws", 1)


def flags(
    options: Options, scenario: Scenario, calls: Sequence[PlannedCall], folder: Path
) -> dict[str, Any]:
    """The configuration of a server for these calls, by dotted name; `options.settings` win."""
    lines = options.calls if scenario.lines == "calls" else len(calls) + _LINES_AHEAD
    given: dict[str, Any] = {
        "server.host": "127.0.0.1",
        "server.max_calls": lines,
        "models.llm": options.llm,
        "models.stt": options.stt,
        "models.voice": options.voice,
        "agents_dir": str(folder / "agents"),
        "trace.folder": str(folder / "traces"),
        "history.enabled": False,  # the user's own calls are there
    }
    if options.scripted:
        given["llm.context_tokens"] = SCRIPT_CONTEXT
    if options.transport == "sip":
        given |= {
            "sip.enabled": True,
            "sip.host": "127.0.0.1",
            "sip.port": free_ports(2),
            "sip.rtp_ports": _rtp_ports(lines),
        }
    if options.baseline:
        given |= {"engine.enable_prefix_caching": "none", "engine.scheduling_policy": "fcfs"}
    return given | dict(options.settings)


def write_agents(
    options: Options, scenario: Scenario, calls: Sequence[PlannedCall], folder: Path
) -> None:
    """The default agent; over SIP, where a caller can say nothing else, one for every call."""
    agents = folder / "agents"
    agents.mkdir(parents=True)
    texts = {"default": calls[0].instructions if calls else "Answer in one short sentence."}
    if options.transport == "sip":
        texts |= {agent_name(call): call.instructions for call in calls}
    for name, text in texts.items():
        body = (
            f"instructions = {json.dumps(text)}\n[limits]\nidle_s = 600.0\n"
            f"max_reply_tokens = {scenario.reply_tokens}\n"
        )
        (agents / f"{name}.toml").write_text(body, "utf-8")


def agent_name(call: PlannedCall) -> str:
    return f"call{call.index}"


@asynccontextmanager
async def own_server(
    options: Options, scenario: Scenario, calls: Sequence[PlannedCall]
) -> AsyncIterator[Target]:
    """Started and ready; stopped by SIGTERM at the end, its turn records then complete.

    Raises InternalError VA533 with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="loadtest-") as name:
        folder = Path(name)
        write_agents(options, scenario, calls, folder)
        given = flags(options, scenario, calls, folder) | {"server.port": 0}
        settings = folder / "settings.json"
        settings.write_text(
            json.dumps(
                {
                    "flags": given,
                    "script": options.scripted,
                    "baseline": options.baseline,
                    "held": options.held_s,
                }
            ),
            "utf-8",
        )
        log = folder / "server.log"
        command = [sys.executable, "-m", "loadtest.serve", str(settings)]
        with log.open("w") as out:
            process = await asyncio.to_thread(
                subprocess.Popen, command, stdout=out, stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        try:
            port = await _ready(process, log)
            sip = ("127.0.0.1", int(given["sip.port"])) if options.transport == "sip" else None
            http = f"http://127.0.0.1:{port}"
            yield Target(http, sip, process.pid, folder / "traces", folder / HELD)
        finally:
            await stop(process)


async def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL to whoever does not end."""
    if process.poll() is None:
        process.terminate()
    try:
        await asyncio.to_thread(process.wait, STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)


async def _ready(process: subprocess.Popen[bytes], log: Path) -> int:
    """Its port, once it says that it is ready."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + READY_WITHIN_S
    while loop.time() < give_up and process.poll() is None:
        for line in (await asyncio.to_thread(log.read_text, "utf-8")).splitlines():
            if line.startswith("ready: "):
                return int(urlsplit(line.removeprefix("ready: ").strip()).port or 0)
        await asyncio.sleep(0.2)
    text = (await asyncio.to_thread(log.read_text, "utf-8")).strip()[-2000:]
    what = "ended while starting" if process.poll() is not None else "is not ready"
    text = f"the server of the load test {what}; its log ends with:\n{text}"
    raise InternalError(text, code="VA533")


async def running_server(options: Options) -> Target:
    """The one of `--url`. Raises UsageError VA532."""
    assert options.url is not None
    parts = urlsplit(options.url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
        raise UsageError(f"{options.url!r} is no address: write http://host:port", code="VA532")
    secure = parts.scheme in ("https", "wss")
    http = f"{'https' if secure else 'http'}://{parts.netloc}"
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    try:
        async with httpx2.AsyncClient(timeout=10.0, headers=headers) as client:
            status = (await client.get(f"{http}/readyz")).status_code
    except httpx2.HTTPError as error:
        raise UsageError(
            f"no server answers at {http} ({error}): start one with `voice-agent up`, or leave "
            "--url out to have one started",
            code="VA532",
        ) from error
    if status != 200:
        raise UsageError(f"the server at {http} is not ready (HTTP {status})", code="VA532")
    return Target(http, _sip_address(options), _listener(parts.hostname, parts.port))


def _sip_address(options: Options) -> tuple[str, int] | None:
    if options.transport != "sip":
        return None
    host, _, port = (options.sip_address or "").rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(
            "telephone calls to a running server need --sip-address HOST:PORT", code="VA532"
        )
    return socket.gethostbyname(host), int(port)


def _listener(host: str, port: int | None) -> int | None:
    """The process behind a port of this machine; None: elsewhere, or not to be seen."""
    if host not in ("127.0.0.1", "localhost", "::1"):
        return None
    with contextlib.suppress(psutil.Error, OSError):
        for c in psutil.net_connections("tcp"):
            if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid:
                return int(c.pid)
    return None


def free_ports(n: int) -> int:
    """The first of n consecutive free UDP ports whose number is even."""
    for _ in range(100):
        with contextlib.ExitStack() as stack:
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            probe.bind(("127.0.0.1", 0))
            first = int(probe.getsockname()[1])
            if first % 2 or first + n > 65_000:
                continue
            try:
                for port in range(first + 1, first + n):
                    one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise InternalError(f"no {n} free UDP ports in a row", code="VA533")


def _rtp_ports(lines: int) -> str:
    n = RTP_PORTS_PER_CALL * (lines + 1)
    first = free_ports(n)
    return f"{first}-{first + n - 1}"
