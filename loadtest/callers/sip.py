"""A telephone call over SIP: sipp does the signalling, this process the sound (G.711 in RTP).

sipp's scenario offers our own RTP port; the server's is learned from its first packet (symmetric
RTP), which it sends as soon as the call is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import tempfile
from pathlib import Path as File
from typing import Any

import numpy as np
import soxr

from .clip import RATE, Pcm
from .ear import Ear
from .line import LineError, Refused
from .network import Network, Path
from .rtp import RtpEar, header, parse, ulaw_decode, ulaw_encode

_G711 = 8_000
_PCMU = 0
_UP_WITHIN_S = 20.0
_OWN = "sipp <sip:loadtest@[local_ip]:[local_port]>;tag=[pid]s[call_number]"
_BUSY = ("480", "486", "503", "600")


def scenario(user: str, rtp_port: int, hold_ms: int) -> str:
    """sipp's XML: call `user`, answer the server's own re-INVITE, hang up after `hold_ms`."""
    to = f"sip:{user}@[remote_ip]:[remote_port]"
    sdp = (
        "v=0\no=- 1 [cseq] IN IP4 [local_ip]\ns=-\nc=IN IP4 [media_ip]\nt=0 0\n"
        f"m=audio {rtp_port} RTP/AVP 0\na=rtpmap:0 PCMU/8000\na=sendrecv\n"
    )

    def request(method: str, cseq: int, body: str = "", *, inside: bool = True) -> str:
        tag = "[peer_tag_param]" if inside else ""
        head = (
            f"{method} {to} SIP/2.0\nVia: SIP/2.0/[transport] [local_ip]:[local_port];"
            f"branch=[branch]\nFrom: {_OWN}\nTo: <{to}>{tag}\nCall-ID: [call_id]\n"
            f"CSeq: {cseq} {method}\n"
        )
        again = "" if method == "ACK" else ' retrans="500"'
        return f"<send{again}>{_message(head, body)}</send>"

    accept = (
        "SIP/2.0 200 OK\n[last_Via:]\n[last_From:]\n[last_To:]\n[last_Call-ID:]\n[last_CSeq:]\n"
    )
    steps = [
        request("INVITE", 1, sdp, inside=False),
        '<recv response="100" optional="true"></recv>',
        '<recv response="180" optional="true"></recv>',
        '<recv response="200" rrs="true"></recv>',
        request("ACK", 1),
        '<recv request="INVITE"></recv>',
        f"<send>{_message(accept, sdp)}</send>",
        '<recv request="ACK"></recv>',
        f'<pause milliseconds="{hold_ms}"/>',
        request("BYE", 2),
        '<recv response="200"></recv>',
    ]
    return f'<?xml version="1.0"?><scenario name="caller">{"".join(steps)}</scenario>'


def _message(head: str, body: str) -> str:
    kind = "Content-Type: application/sdp\n" if body else ""
    return (
        f"<![CDATA[\n{head}Max-Forwards: 70\nContact: <sip:loadtest@[local_ip]:[local_port]>\n"
        f"{kind}Content-Length: [len]\n\n{body}]]>"
    )


class _Media(asyncio.DatagramProtocol):
    """The RTP socket of one call."""

    def __init__(self, ear: Ear, path: Path | None) -> None:
        self._rtp = RtpEar(ear, _G711)
        self._path = path
        self._up = soxr.ResampleStream(_G711, RATE, 1, dtype="int16")
        self.server: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        packet = parse(data)
        if packet is None or packet[0] != _PCMU:
            return
        if not self.server.done():
            self.server.set_result(addr)
        loop = asyncio.get_running_loop()
        if self._path is None:
            self._take(*packet[1:])
        else:
            loop.call_at(self._path.arrival(loop.time()), self._take, *packet[1:])

    def _take(self, sequence: int, timestamp: int, payload: bytes) -> None:
        pcm = self._up.resample_chunk(ulaw_decode(payload))
        self._rtp.add(sequence, timestamp, pcm, asyncio.get_running_loop().time())


class SipLine:
    def __init__(
        self,
        server: tuple[str, int],
        user: str = "voice-agent",
        network: Network | None = None,
        seed: int = 0,
    ) -> None:
        """server: SIP over UDP. user: who is called; the name of an agent chooses it."""
        self.lost = ""
        self._server = server
        self._user = user
        self._up = Path(network, seed, stream=True) if network else None
        self._down = Path(network, seed + 1, stream=False) if network else None
        self._seed = seed
        self._sequence = 0
        self._down_sample = soxr.ResampleStream(RATE, _G711, 1, dtype="int16")
        self._pending = np.zeros(0, np.int16)
        self._transport: asyncio.DatagramTransport | None = None
        self._media: _Media | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="loadtest-sip-")
        self._watcher: asyncio.Task[None] | None = None

    async def open(self, ear: Ear, hold_s: float) -> None:
        if shutil.which("sipp") is None:
            raise LineError("sipp is needed for telephone calls: install it (Debian: sip-tester)")
        loop = asyncio.get_running_loop()
        host = _own_address(self._server)
        self._transport, self._media = await loop.create_datagram_endpoint(
            lambda: _Media(ear, self._down), (host, 0)
        )
        port = self._transport.get_extra_info("sockname")[1]
        self._process = await self._dial(host, port, int(hold_s * 1000))
        self._watcher = asyncio.ensure_future(self._watch(self._process))
        first: set[asyncio.Future[Any]] = {self._media.server, self._watcher}
        done, _ = await asyncio.wait(
            first, timeout=_UP_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        if self._watcher in done:
            raise self._why()
        if not done:
            raise LineError(f"{self._server[0]}:{self._server[1]} sent no sound after the dial")

    async def _dial(self, host: str, rtp_port: int, hold_ms: int) -> asyncio.subprocess.Process:
        folder = File(self._folder.name)
        file = folder / "caller.xml"
        file.write_text(scenario(self._user, rtp_port, hold_ms), "utf-8")
        command = [
            "sipp", "-sf", str(file), "-i", host, "-p", str(_free_port(host)), "-mi", host,
            "-m", "1", "-l", "1", "-nostdin", "-trace_err", "-error_file", str(folder / "errors"),
            "-timeout", f"{hold_ms // 1000 + 30}s", "-cp", str(_free_port(host)),
            f"{self._server[0]}:{self._server[1]}",
        ]  # fmt: skip
        quiet = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdout=quiet, stderr=quiet
        )

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self.lost = self.lost or "the telephone call is over"

    def _why(self) -> Refused | LineError:
        """Of a call that never came up: the server's status, as sipp tells it."""
        errors = File(self._folder.name) / "errors"
        text = errors.read_text("utf-8", "replace") if errors.exists() else ""
        found = re.search(r"SIP/2\.0 ([3-6]\d\d)", text)
        if found and found[1] in _BUSY:
            return Refused(f"SIP {found[1]}")
        what = f"SIP {found[1]}" if found else "no answer"
        return LineError(f"{self._server[0]}:{self._server[1]}: {what}")

    async def send(self, frame: Pcm) -> None:
        if self._media is None or not self._media.server.done() or self.lost:
            return
        self._pending = np.concatenate([self._pending, self._down_sample.resample_chunk(frame)])
        while len(self._pending) >= 160:
            head = header(_PCMU, self._sequence, self._sequence * 160, self._seed & 0xFFFFFFFF)
            self._later(head + ulaw_encode(self._pending[:160]), self._media.server.result())
            self._pending = self._pending[160:]
            self._sequence += 1

    def _later(self, packet: bytes, to: tuple[str, int]) -> None:
        assert self._transport is not None
        if self._up is None:
            self._transport.sendto(packet, to)
        else:
            loop = asyncio.get_running_loop()
            loop.call_at(self._up.arrival(loop.time()), self._transport.sendto, packet, to)

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                for _ in range(2):  # the second one makes sipp hang up the calls it has
                    self._process.send_signal(signal.SIGUSR1)
            try:
                await asyncio.wait_for(self._process.wait(), 3.0)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._watcher is not None:
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()
        self._folder.cleanup()


def _own_address(server: tuple[str, int]) -> str:
    """From which of our addresses the server is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(server)
        except OSError as error:
            raise LineError(f"{server[0]}:{server[1]} cannot be reached: {error}") from error
        return str(probe.getsockname()[0])


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
