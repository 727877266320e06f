"""Separate networks on one machine: Linux network namespaces and the cables between them.

Needs root and iproute2; everything is gone with `close`. Names carry the process id, so that two
runs do not meet.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

CLONE_NEWNET = 0x40000000
_PACKAGES = {"ip": "iproute2", "turnserver": "coturn", "rtpengine": "rtpengine-daemon"}


def lacking(*tools: str) -> str:
    """What this machine lacks for namespaces and for `tools`, in words; "" if nothing."""
    if not Path("/proc/self/ns/net").exists():
        return "Linux"
    if os.geteuid() != 0:
        return "root (network namespaces)"
    for tool in ("ip", *tools):
        if shutil.which(tool) is None:
            return _PACKAGES.get(tool, tool)
    try:
        Namespace("probe").close()
    except subprocess.CalledProcessError as error:
        return f"network namespaces: {error.stderr.strip()}"
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Namespace:
    """Owns one network. IPv4 only, so that there is one way from here to there."""

    def __init__(self, name: str) -> None:
        """Raises subprocess.CalledProcessError where the kernel refuses."""
        self.name = name
        self.full_name = f"va{os.getpid()}-{name}"
        _ip("netns", "add", self.full_name)
        self.run("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 || true")
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *words: str) -> list[str]:
        """`words` to be run inside."""
        return ["ip", "netns", "exec", self.full_name, *words]

    def run(self, *words: str) -> str:
        """What the command printed. Raises subprocess.CalledProcessError."""
        done = subprocess.run(self.command(*words), check=True, capture_output=True, text=True)
        return done.stdout

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets that this thread opens meanwhile, and threads and processes that it starts,
        belong to the namespace, and stay there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.full_name}", os.O_RDONLY)
        try:
            _enter(there)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(there)
            os.close(home)

    def close(self) -> None:
        """The network, its interfaces and their cables."""
        _ip("netns", "delete", self.full_name)


def _enter(descriptor: int) -> None:
    """setns(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def cable(a: Namespace, a_address: str, b: Namespace, b_address: str) -> None:
    """Addresses with a prefix length, `10.0.0.1/24`. Each end is named after the other side."""
    _ip("link", "add", b.name, "netns", a.full_name, "type", "veth",
        "peer", "name", a.name, "netns", b.full_name)  # fmt: skip
    for at, name, address in ((a, b.name, a_address), (b, a.name, b_address)):
        at.run("ip", "address", "add", address, "dev", name)
        at.run("ip", "link", "set", name, "up")


@contextlib.contextmanager
def namespaces(names: Sequence[str]) -> Iterator[list[Namespace]]:
    """New ones by these names; closed at the end."""
    with contextlib.ExitStack() as stack:
        made = []
        for name in names:
            made.append(Namespace(name))
            stack.callback(made[-1].close)
        yield made
