"""A caller at home and a server in an office, each behind a NAT, and a relay between them.

    home 192.168.50.2 --- router 192.168.50.1 | 10.60.0.1 --- office 10.60.0.2 (203.0.113.9)
                                 198.51.100.1 --- relay 198.51.100.3

The router does what both sides' NATs do: who goes out to the Internet or the office is
masqueraded behind a random port, and the office's media ports and web port are mapped to it, port
by port. Nothing else is let through: the addresses behind the NATs lead nowhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loadtest.bench.transport.namespaces import Namespace, cable, namespaces
from tests.support.live_server import Running, serving_on_thread

HOME, OFFICE, RELAY, PUBLIC = "192.168.50.2", "10.60.0.2", "198.51.100.3", "203.0.113.9"
MOBILE = "192.168.77.2/24"
PORTS = (40_000, 40_019)
KEY = "a-key-of-the-caller"


@dataclass(frozen=True)
class Internet:
    home: Namespace
    office: Namespace
    relay: Namespace
    router: Namespace

    def rule(self, *words: str) -> None:
        self.router.run("iptables", "--wait", *words)

    def map_port(self, port: int) -> None:
        """TCP of the public address, to the office."""
        self._to_office("tcp", str(port))

    def _to_office(self, protocol: str, ports: str) -> None:
        self.rule("-t", "nat", "-A", "PREROUTING", "-d", PUBLIC, "-p", protocol,
                  "--dport", ports, "-j", "DNAT", "--to-destination", OFFICE)  # fmt: skip

    def only_relayed(self) -> None:
        """From now on home's UDP reaches the relay and nothing else."""
        self.rule("-I", "FORWARD", "-i", "home", "-p", "udp", "!", "-d", RELAY, "-j", "DROP")

    def packets(self, chain: str, *, table: str = "filter") -> dict[str, int]:
        """target of a rule -> packets that it matched."""
        rows = self.router.run("iptables", "-t", table, "-L", chain, "-v", "-x", "-n").splitlines()
        counts: dict[str, int] = {}
        for row in rows[2:]:
            words = row.split()
            counts[words[2]] = counts.get(words[2], 0) + int(words[0])
        return counts


@contextlib.contextmanager
def internet() -> Iterator[Internet]:
    """Needs root, ip and iptables."""
    with namespaces(("home", "office", "relay", "router")) as (home, office, relay, router):
        net = Internet(home, office, relay, router)
        cable(home, f"{HOME}/24", router, "192.168.50.1/24")
        cable(office, f"{OFFICE}/24", router, "10.60.0.1/24")
        cable(relay, f"{RELAY}/24", router, "198.51.100.1/24")
        for side, gateway in ((home, "192.168.50.1"), (office, "10.60.0.1"),
                              (relay, "198.51.100.1")):  # fmt: skip
            side.run("ip", "route", "add", "default", "via", gateway)
        router.run("ip", "address", "add", f"{PUBLIC}/32", "dev", "lo")
        router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        net._to_office("udp", f"{PORTS[0]}:{PORTS[1]}")
        for side in ("office", "relay"):
            net.rule("-t", "nat", "-A", "POSTROUTING", "-o", side, "-j", "MASQUERADE", "--random")
        net.rule("-P", "FORWARD", "DROP")
        for state in ("ESTABLISHED,RELATED", "DNAT"):
            net.rule("-A", "FORWARD", "-m", "conntrack", "--ctstate", state, "-j", "ACCEPT")
        net.rule("-A", "FORWARD", "-d", RELAY, "-j", "ACCEPT")
        yield net


@dataclass(frozen=True)
class Mobile:
    """A second way out of home, through a NAT of its own; not in use at first."""

    home: Namespace
    cell: Namespace

    def take_over(self) -> None:
        """Home's cable is pulled and its address given up, and the mobile network is there: another
        address, another NAT. Programs that listen for such news get them."""
        for side in ("router", "cell"):
            self.home.run("ip", "address", "flush", "dev", side)
        self.home.run("ip", "address", "add", MOBILE, "dev", "cell")
        self.take_over_silently()

    def take_over_silently(self) -> None:
        """The same, but no address comes or goes: what was open hangs, and nobody is told."""
        self.home.run("ip", "link", "set", "router", "down")
        self.home.run("ip", "link", "set", "cell", "up")
        self.home.run("ip", "route", "add", "default", "via", "192.168.77.1")

    def carried(self) -> int:
        """Packets that home has sent this way."""
        return int(self.cell.run("cat", "/sys/class/net/home/statistics/rx_packets"))


@contextlib.contextmanager
def mobile(net: Internet) -> Iterator[Mobile]:
    with namespaces(("cell",)) as (cell,):
        cable(net.home, MOBILE, cell, "192.168.77.1/24")
        cable(cell, "10.70.0.2/24", net.router, "10.70.0.1/24")
        net.home.run("ip", "link", "set", "cell", "down")
        cell.run("ip", "route", "add", "default", "via", "10.70.0.1")
        cell.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        cell.run("iptables", "--wait", "-t", "nat", "-A", "POSTROUTING", "-o", "router",
                 "-j", "MASQUERADE", "--random")  # fmt: skip
        yield Mobile(net.home, cell)


@contextlib.contextmanager
def office(net: Internet, stack: Any, **settings: Any) -> Iterator[Running]:
    """The server in the office, by the address that the world knows it by."""
    serve = serving_on_thread(
        stack, net.office.entered, host=OFFICE, allowed_hosts=(PUBLIC,), api_keys=(KEY,), **settings
    )
    with serve as running:
        net.map_port(running.port)
        yield Running(PUBLIC, running.port, running.gateway, running.app)
