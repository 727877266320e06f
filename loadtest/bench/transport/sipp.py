"""Telephone callers: sipp has the calls, this process the ear.

sipp does what is SIP, and speaks when asked to; what the server sends goes to a socket of ours, as
the SDP says, which is how it can be counted and timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
PCMU = 0
_SERVER = "sip:agent@[remote_ip]:[remote_port]"
_OWN = "sipp <sip:sipp@[local_ip]:[local_port]>;tag=[pid]s[call_number]"
UP_WITHIN_S = 30.0


def free_ports(n: int) -> int:
    """The first, an even one, of n UDP ports in a row that are free now; TCP is there as well."""
    while True:
        with contextlib.ExitStack() as stack:
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            probe.bind((HOST, 0))
            first = int(probe.getsockname()[1]) & ~1
            probe.close()
            if first + n > 65_000:
                continue
            try:
                for port in range(first, first + n):
                    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                        sock = stack.enter_context(socket.socket(socket.AF_INET, kind))
                        sock.bind((HOST, port))
            except OSError:
                continue
            return first


def _sdp(port: int) -> str:
    return "\n".join(
        [
            "v=0", "o=- 1 [cseq] IN IP4 [local_ip]", "s=-", f"c=IN IP4 {HOST}", "t=0 0",
            f"m=audio {port} RTP/AVP {PCMU}", f"a=rtpmap:{PCMU} PCMU/8000", "a=sendrecv", "",
        ]
    )  # fmt: skip


def _send(head: list[str], body: str) -> str:
    lines = [*head, "Contact: <sip:sipp@[local_ip]:[local_port]>"]
    lines += ["Content-Type: application/sdp"] if body else []
    return (
        "<send><![CDATA[\n"
        + "\n".join([*lines, "Content-Length: [len]", "", body])
        + "\n]]></send>"
    )


def _ask(method: str, cseq: int, body: str = "", *, tag: str = "[peer_tag_param]") -> str:
    head = [
        f"{method} {_SERVER} SIP/2.0",
        "Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]",
        f"From: {_OWN}", f"To: <{_SERVER}>{tag}", "Call-ID: [call_id]", f"CSeq: {cseq} {method}",
        "Max-Forwards: 70",
    ]  # fmt: skip
    return _send(head, body)


def scenario(port: int, file: Path | None, seconds: float) -> str:
    """A call whose sound comes to `port`. file: mu-law to speak again and again; None: nothing."""
    ok = ["SIP/2.0 200 OK", "[last_Via:]", "[last_From:]", "[last_To:]", "[last_Call-ID:]",
          "[last_CSeq:]"]  # fmt: skip
    speak = f'<nop><action><exec rtp_stream="{file},-1,{PCMU}"/></action></nop>' if file else ""
    steps = [
        _ask("INVITE", 1, _sdp(port), tag=""),
        '<recv response="100" optional="true"/>', '<recv response="180" optional="true"/>',
        '<recv response="200" rrs="true"/>', _ask("ACK", 1),
        # the server's own re-INVITE, right after it has answered
        '<recv request="INVITE"/>', _send(ok, _sdp(port)), '<recv request="ACK"/>',
        speak, f'<pause milliseconds="{seconds * 1000:.0f}"/>',
        _ask("BYE", 9), '<recv response="200"/>',
    ]  # fmt: skip
    return f'<?xml version="1.0"?><scenario name="call">{"".join(steps)}</scenario>'


class SippCalls:
    """`calls` at once, all of them speaking. `got`: packets that came from the server."""

    def __init__(self, server: int, calls: int, speech: bytes) -> None:
        """server: its SIP port; speech: mu-law, 8 kHz."""
        self._server = server
        self._calls = calls
        self._speech = speech
        self._lines: set[int] = set()
        self.got = 0

    def came(self, line: int) -> None:
        """A packet of the server's, from the port that it has for one call."""
        self.got += 1
        self._lines.add(line)

    async def run(self, connected: asyncio.Semaphore, over: asyncio.Event) -> None:
        """connected is released once every call is up; ends after `over`."""
        loop = asyncio.get_running_loop()
        ear, _ = await loop.create_datagram_endpoint(lambda: _Counter(self), (HOST, 0))
        with tempfile.TemporaryDirectory() as folder:
            port = ear.get_extra_info("sockname")[1]
            file = Path(folder) / "speech.ulaw"
            file.write_bytes(self._speech)
            steps = scenario(port, file, 3600.0)
            process = await start(Path(folder), steps, self._server, self._calls)
            try:
                async with asyncio.timeout(UP_WITHIN_S):
                    while len(self._lines) < self._calls:  # noqa: ASYNC110 - counted by packets
                        await asyncio.sleep(0.05)
                connected.release()
                await over.wait()
            finally:
                process.terminate()
                await process.wait()
                ear.close()


class _Counter(asyncio.DatagramProtocol):
    def __init__(self, calls: SippCalls) -> None:
        self._calls = calls

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if data[1] & 0x7F == PCMU:
            self._calls.came(address[1])


async def start(folder: Path, steps: str, server: int, calls: int) -> asyncio.subprocess.Process:
    """sipp with a scenario, its files in `folder`."""
    if shutil.which("sipp") is None:
        raise RuntimeError("sipp is needed (Debian: sip-tester)")
    path = folder / "scenario.xml"
    path.write_text(steps, "utf-8")
    quiet = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        "sipp", "-sf", str(path), "-i", HOST, "-p", str(free_ports(2)), "-mi", HOST,
        "-mp", str(free_ports(4 * calls)), "-m", str(calls), "-l", str(calls), "-r", str(calls),
        "-nostdin", "-cp", str(free_ports(2)), f"{HOST}:{server}",
        cwd=folder, stdout=quiet, stderr=quiet,
    )  # fmt: skip
