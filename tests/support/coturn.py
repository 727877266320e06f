"""coturn, a TURN server, in a network of its own."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from loadtest.bench.transport.namespaces import Namespace

PORT = 3478
START_WITHIN_S = 20.0  # never asserted, only given up on


@contextlib.contextmanager
def coturn(
    namespace: Namespace, folder: Path, address: str, secret: str, peer: str
) -> Iterator[Callable[[], str]]:
    """What it has logged so far. It relays from `address` to `peer` only, for accounts made with
    `secret`: the settings of docs/NAT.md."""
    log = folder / "coturn.log"
    settings = [
        "no-cli", "no-tls", "no-dtls", "no-multicast-peers", "fingerprint", "verbose",
        "realm=voice-agent", "use-auth-secret", f"static-auth-secret={secret}",
        f"listening-ip={address}", f"listening-port={PORT}", f"relay-ip={address}",
        "denied-peer-ip=0.0.0.0-255.255.255.255", f"allowed-peer-ip={peer}",
        f"log-file={log}", "simple-log", f"pidfile={folder / 'coturn.pid'}",
        f"userdb={folder / 'coturn.db'}",
    ]  # fmt: skip
    conf = folder / "turnserver.conf"
    conf.write_text("\n".join(settings) + "\n", "utf-8")
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        namespace.command("turnserver", "-c", str(conf)), stdout=quiet, stderr=quiet, cwd=folder
    )
    try:
        _wait(process, namespace, log)
        yield log.read_text
    finally:
        process.terminate()
        process.wait(20)


def _wait(process: subprocess.Popen[bytes], namespace: Namespace, log: Path) -> None:
    give_up = time.monotonic() + START_WITHIN_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            break
        if f":{PORT:04X} " in namespace.run("cat", "/proc/net/udp"):
            return
        time.sleep(0.05)
    raise RuntimeError(f"coturn did not start: {log.read_text() if log.exists() else ''}")
