"""`voice-agent up`: the wiring of configuration, stack and gateway on one port.

The only module outside `gateway` that imports it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import uvicorn
import uvloop

from gateway.app import create_app, uvicorn_config
from gateway.auth import KeyRing
from gateway.config import EchoModes, GatewayConfig, IceServer, RtcNetwork, check_bind, is_loopback
from gateway.lifecycle import Lifecycle, disarm, guard_process
from gateway.media.echo import EchoMode
from gateway.sip.settings import Encryption, SipSettings, Trunk
from gateway.sip.settings import check as check_sip
from gateway.sip.telephone import check_port as check_sip_port
from gateway.tls import ServedCertificate
from voice_agent.cli.console import progress
from voice_agent.cli.keys import keys_path
from voice_agent.cli.runtime import begin, settle
from voice_agent.cli.tls import self_signed
from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.library.parts import Parts
from voice_agent.load_section import TARGETS
from voice_agent.loading import load_stack
from voice_agent.machine import own_names
from voice_agent.models import data_dir
from voice_agent.room import Room, files_needed, raise_limit
from voice_agent.selection import target_ms
from voice_agent.stack import Stack
from voice_agent.vitals import Vitals, signs

EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a server is started with. load: reads its configuration anew; parts: of a program of
    one's own."""

    config: Config
    door: GatewayConfig
    parts: Parts
    load: Callable[[], Config]
    max_files: int
    certificate: ServedCertificate | None

    def door_of(self, config: Config) -> GatewayConfig:
        """Of a configuration read later: ports and telephone lines stay as they are."""
        return replace(gateway_config(config, self.door.port), sip=self.door.sip)


def serve(
    config: Config, parts: Parts | None = None, load: Callable[[], Config] | None = None
) -> None:
    """Run until SIGTERM or SIGINT, then drain. Blocking. parts: of a program of one's own. load:
    the configuration as it stands when it is asked for again; None: it never changes.

    Raises UsageError VA470 (port), CapacityError VA204 and VA205 (files, memory), InternalError
    VA493 (a stage died), and what checking, loading and starting raise.
    """
    guard_process()
    begin(config)
    certificate = _certificate(config)
    with reserve(config.server.host, config.server.port) as sock:
        sip = sip_settings(config) if config.sip.enabled else None
        door = gateway_config(config, sock.getsockname()[1], sip)
        check_bind(door)
        max_files = raise_limit(files_needed(door.max_calls, door.max_connections))
        load = load or (lambda: config)
        plan = Plan(config, door, parts or Parts(), load, max_files, certificate)
        uvloop.run(_serve(plan, sock))
    disarm()


def gateway_config(config: Config, port: int, sip: SipSettings | None = None) -> GatewayConfig:
    """The gateway's own record, from ours. Listening everywhere, it answers to this machine's own
    name and addresses; any further name must be allowed."""
    server = config.server
    own = own_names() if server.host in EVERYWHERE else []
    bracketed = tuple(f"[{n}]" if ":" in n else n for n in own)
    return GatewayConfig(
        host=server.host,
        port=port,
        api_keys=server.api_keys,
        allowed_hosts=(*server.allowed_hosts, *bracketed),
        allowed_origins=server.allowed_origins,
        keys_file=keys_path(config),
        twilio_auth_token=server.twilio_auth_token,
        page=server.page,
        trusted_proxies=server.trusted_proxies,
        requests_per_minute=server.requests_per_minute,
        calls_per_minute=server.calls_per_minute,
        max_calls_per_key=server.max_calls_per_key,
        public_certificate=server.tls_certificate is not None,
        max_calls=server.max_calls,
        max_waiting=config.load.waiting,
        admit_s=admit_ms(config) / 1000.0,
        max_http_replies=server.max_http_replies,
        media_workers=config.rtc.workers,
        hold_s=config.rtc.hold_s,
        rtc=RtcNetwork(
            ports=config.rtc.port_range,
            public_address=config.rtc.public_address,
            ice_servers=tuple(IceServer(**s.model_dump()) for s in config.rtc.ice_servers),
        ),
        echo=EchoModes(**{name: EchoMode(mode) for name, mode in config.echo}),
        sip=sip,
    )


def admit_ms(config: Config) -> float:
    """Predicted answer past which no further call is taken."""
    device = "cuda" if config.profile == "gpu" else "cpu"
    return config.load.admit_ms or TARGETS * target_ms(config, device)


def sip_settings(config: Config) -> SipSettings:
    """Raises UsageError VA500 to VA503 naming what to change."""
    given = config.sip.model_dump(exclude={"enabled", "rtp_ports", "trunk"})
    given |= {
        "rtp_ports": config.sip.port_range,
        "encryption": Encryption(config.sip.encryption),
        "agent": config.sip.agent or None,
        "trunk": Trunk(**config.sip.trunk.model_dump()) if config.sip.trunk.registrar else None,
    }
    settings = SipSettings(**given)
    check_sip(settings, config.server.max_calls)
    check_sip_port(settings)
    return settings


def reserve(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: a busy port shows before any model is loaded.

    Raises UsageError VA470.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), port))
    except OSError as e:
        sock.close()
        raise UsageError(_bind_text(host, port, e), code="VA470") from e
    sock.setblocking(False)
    return sock


class Server(uvicorn.Server):
    """uvicorn without its own signal handling, which `Lifecycle` does.

    settled: set once it listens or has failed to.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.settled.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(plan: Plan, sock: socket.socket) -> None:
    config, door, certificate = plan.config, plan.door, plan.certificate
    with progress() as stage:
        stack = await load_stack(config, stage, plan.parts)
        stage("greetings and prompts", None)
        await stack.start()
    settle()
    room = Room(plan.max_files)
    try:
        room.check_start()
        app = create_app(stack, door)
        gateway = app.state.gateway
        gateway.room = room
        life = gateway.controls = Lifecycle(
            gateway,
            stack,
            Vitals(partial(signs, stack)),
            config,
            load=plan.load,
            door_of=plan.door_of,
            own_agents=bool(plan.parts.agents),
        )
        server = Server(
            uvicorn_config(
                app, door, loop="uvloop", timeout_graceful_shutdown=5, **_tls(certificate)
            )
        )
        async with asyncio.TaskGroup() as group:
            life.listen()
            if certificate is not None:
                looking = group.create_task(certificate.watch())
            running = group.create_task(server.serve(sockets=[sock]))
            await server.settled.wait()
            living = group.create_task(life.run())
            if server.started:
                announce(config, door, stack)
            await asyncio.wait({running, living}, return_when=asyncio.FIRST_COMPLETED)
            if certificate is not None:
                looking.cancel()
            server.should_exit = True
            if not living.done():
                living.cancel()  # it could not listen, or its workers do not start
    finally:
        await stack.close()
    if life.fault is not None:
        raise life.fault


def announce(config: Config, door: GatewayConfig, stack: Stack) -> None:
    """What was chosen and why, then the address: printed only when a call would be answered."""
    for choice in stack.choices:
        print(f"{choice.job:<15} {choice.model} on {choice.device}", file=sys.stderr)
    for why in dict.fromkeys(choice.why for choice in stack.choices if choice.why):
        print(f"{'because':<15} {why}", file=sys.stderr)
    scheme = "https" if config.server.https else "http"
    host = "localhost" if is_loopback(door.host) else door.host
    if host in EVERYWHERE:
        host = socket.gethostname()
    print(f"ready: {scheme}://{host}:{door.port}/", flush=True)
    if door.sip is not None:
        print(f"telephone: sip:{door.sip.user}@{door.sip.host}:{door.sip.port}", flush=True)
    if KeyRing(door.api_keys, door.keys_file).any:
        print("callers need an API key", file=sys.stderr)


def _certificate(config: Config) -> ServedCertificate | None:
    server = config.server
    if server.tls_self_signed:
        return ServedCertificate(*self_signed(data_dir() / "tls", server.host))
    if server.tls_certificate is not None and server.tls_key is not None:
        return ServedCertificate(server.tls_certificate, server.tls_key)
    return None


def _tls(certificate: ServedCertificate | None) -> dict[str, Any]:
    if certificate is None:
        return {}
    return {"ssl_context_factory": lambda config, default: certificate.context}


def _bind_text(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use{_owner(port)}; stop that program, or choose another "
            f"port: --port {port + 1} (0 picks a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges; choose one above 1023, such as --port 8080"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def _owner(port: int) -> str:
    """` by NAME (process N)`, if it can be seen."""
    import psutil

    try:
        for c in psutil.net_connections("tcp"):
            if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid:
                return f" by {psutil.Process(c.pid).name()} (process {c.pid})"
    except (psutil.Error, OSError):
        pass
    return ""
