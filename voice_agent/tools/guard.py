"""Where a tool may connect to: public addresses, and those the operator has opened.

A name is resolved once, every address it has is checked, and the connection goes to a checked one,
so that a name which changes its mind in between leads nowhere (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable

import httpx2

from .base import ToolFailed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
CONNECT_S = 5.0
_TRANSLATED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16"))
"""IPv6 that leads to any IPv4 address."""


async def resolve(host: str, port: int) -> list[str]:
    """Every address of a name, by the system's resolver. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Guard:
    """private: names, addresses and networks that may be reached although they are not public."""

    def __init__(self, private: Iterable[str] = (), resolve: Resolve = resolve) -> None:
        """Raises ValueError for what looks like a network and is none."""
        self._names: set[str] = set()
        self._networks: list[Network] = []
        self._resolve = resolve
        for entry in private:
            if "/" in entry or _address(entry) is not None:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            else:
                self._names.add(entry.lower().rstrip("."))

    async def address(self, host: str, port: int) -> str:
        """A checked address of the host. Raises ToolFailed, which names no address."""
        try:
            found = await self._resolve(host, port)
        except OSError:
            found = []
        if not found:
            raise ToolFailed("its server cannot be found")
        if host.lower().rstrip(".") not in self._names and not all(map(self._open, found)):
            raise ToolFailed("its server is not one that may be reached")
        return found[0]

    def _open(self, text: str) -> bool:
        address = _address(text.split("%")[0])
        if address is None:
            return False
        if any(address in network for network in self._networks):
            return True
        translated = any(address in network for network in _TRANSLATED)
        return address.is_global and not address.is_multicast and not translated


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Connects to checked addresses only. TLS still speaks to, and checks, the name.

    One pool for each name: two names at one address never share a connection.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._pools: dict[tuple[str, str, int], httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        async with asyncio.timeout(CONNECT_S):
            address = await self._guard.address(url.host, port)
        pool = await self._pool((url.scheme, url.host, port))
        request.extensions = {**request.extensions, "sni_hostname": url.host}
        request.url = url.copy_with(host=address)
        return await pool.handle_async_request(request)

    async def _pool(self, key: tuple[str, str, int]) -> httpx2.AsyncHTTPTransport:
        if key not in self._pools:
            trusted = await asyncio.to_thread(_trusted)  # reads a file of certificates, slowly
            self._pools.setdefault(key, httpx2.AsyncHTTPTransport(verify=trusted))
        return self._pools[key]

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()


@functools.cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


def client(guard: Guard, headers: dict[str, str], timeout_s: float | None) -> httpx2.AsyncClient:
    """Redirects are answers here: nobody is sent elsewhere."""
    return httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S),
        follow_redirects=False,
        transport=GuardedTransport(guard),
    )
