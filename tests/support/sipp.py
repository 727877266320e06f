"""sipp scenarios from a few building blocks, and a run of one against the server.

Tags of sipp's own in square brackets (`[call_id]`) are filled in by it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.telephone import HOST, free_udp

NEEDS_SIPP = pytest.mark.skipif(shutil.which("sipp") is None, reason="NOT RUN: needs sipp")
PCMU = "0"
OWN = "sipp <sip:sipp@[local_ip]:[local_port]>;tag=[pid]s[call_number]"
SERVER = "sip:agent@[remote_ip]:[remote_port]"


def sdp(codec: str = PCMU, *, port: str = "[auto_media_port]", direction: str = "sendrecv") -> str:
    """An offer or answer with one codec (by payload type) and telephone events."""
    names = {"0": "PCMU/8000", "8": "PCMA/8000"}
    lines = [
        "v=0", "o=- 1 [cseq] IN IP4 [local_ip]", "s=-", "c=IN IP4 [media_ip]", "t=0 0",
        f"m=audio {port} RTP/AVP {codec} 101", f"a=rtpmap:{codec} {names[codec]}",
        "a=rtpmap:101 telephone-event/8000", "a=fmtp:101 0-15", f"a={direction}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _message(head: Sequence[str], body: str = "", kind: str = "application/sdp") -> str:
    lines = [*head, "Max-Forwards: 70", "Contact: <sip:sipp@[local_ip]:[local_port]>"]
    if body:
        lines.append(f"Content-Type: {kind}")
    text = "\n".join([*lines, "Content-Length: [len]", "", body])
    return f"<![CDATA[\n{text}\n]]>"


def request(
    method: str,
    cseq: int,
    body: str = "",
    *,
    kind: str = "application/sdp",
    inside: bool = True,
    branch: str = "[branch]",
) -> str:
    """A request of the caller; inside: of the dialog."""
    head = [
        f"{method} {SERVER} SIP/2.0",
        f"Via: SIP/2.0/[transport] [local_ip]:[local_port];branch={branch}",
        f"From: {OWN}",
        f"To: <{SERVER}>" + ("[peer_tag_param]" if inside else ""),
        "Call-ID: [call_id]",
        f"CSeq: {cseq} {method}",
    ]
    again = "" if method == "ACK" else ' retrans="500"'
    return f"<send{again}>{_message(head, body, kind)}</send>"


def invite(body: str | None = None) -> str:
    return request("INVITE", 1, sdp() if body is None else body, inside=False)


def response(status: str, body: str = "", more: str = "") -> str:
    """To the server's last request."""
    head = [
        f"SIP/2.0 {status}", "[last_Via:]", "[last_From:]",
        "[last_To:];tag=[pid]s[call_number]", "[last_Call-ID:]", "[last_CSeq:]",
    ]  # fmt: skip
    return f"<send>{_message([*head, *([more] if more else [])], body)}</send>"


def inside_response(status: str, body: str = "") -> str:
    """To a request of the server inside the dialog, whose To has our tag already."""
    head = [f"SIP/2.0 {status}", "[last_Via:]", "[last_From:]", "[last_To:]", "[last_Call-ID:]",
            "[last_CSeq:]"]  # fmt: skip
    return f"<send>{_message(head, body)}</send>"


def got(status: int, *, optional: bool = False, action: str = "") -> str:
    maybe = ' optional="true"' if optional else ""
    inner = f"<action>{action}</action>" if action else ""
    return f'<recv response="{status}"{maybe} rrs="true">{inner}</recv>'


def asked(method: str, *, optional: bool = False, more: str = "") -> str:
    maybe = ' optional="true"' if optional else ""
    return f'<recv request="{method}"{maybe}{more}></recv>'


def has(pattern: str) -> str:
    """An action: the message must match."""
    return f'<ereg regexp="{pattern}" search_in="msg" check_it="true" assign_to="found"/>'


def pause(ms: int) -> str:
    return f'<pause milliseconds="{ms}"/>'


def stream(file: Path, payload_type: str = PCMU) -> str:
    """Send a file of encoded sound, again and again."""
    return f'<nop><action><exec rtp_stream="{file},-1,{payload_type}"/></action></nop>'


RINGING = [got(100, optional=True), got(180, optional=True)]
CANCEL = request("CANCEL", 1, inside=False, branch="[branch-3]")
"""Of the INVITE three steps before."""
HANG_UP = [request("BYE", 9), got(200)]
ACK = request("ACK", 1)


def probed(port: str = "[rtpstream_audio_port]") -> list[str]:
    """The server's own re-INVITE, which it sends right after a caller's ACK."""
    return [asked("INVITE"), inside_response("200 OK", sdp(port=port)), asked("ACK")]


def answered(body: str | None = None, *, port: str = "[rtpstream_audio_port]") -> list[str]:
    """Steps from INVITE to a call that is up."""
    offer = sdp(port=port) if body is None else body
    return [invite(offer), *RINGING, got(200), ACK, *probed(port)]


@dataclass(frozen=True)
class SippRun:
    """ok: every call went as the scenario says. log: what it says of those that did not."""

    ok: bool
    log: str
    stats: dict[str, str]


async def sipp(
    folder: Path,
    name: str,
    steps: Sequence[str],
    server: int | None,
    *,
    calls: int = 1,
    own: int | None = None,
) -> SippRun:
    """server: its SIP port; None: sipp waits for calls. calls: as many, all at once."""
    scenario, stats, errors = (folder / f"{name}.{end}" for end in ("xml", "csv", "log"))
    uses = '<Reference variables="found"/>' if any("found" in step for step in steps) else ""
    scenario.write_text(
        f'<?xml version="1.0" encoding="UTF-8"?><scenario name="{name}">{"".join(steps)}{uses}'
        "</scenario>",
        "utf-8",
    )
    command = [
        "sipp", "-sf", str(scenario), "-i", HOST, "-p", str(own or free_udp()), "-mi", HOST,
        "-mp", str(free_udp(2 * calls + 2)), "-m", str(calls), "-l", str(calls), "-r", str(calls),
        "-nostdin", "-trace_err", "-error_file", str(errors), "-trace_stat", "-stf", str(stats),
        "-timeout", "50s", "-timeout_error", "-cp", str(free_udp()),
    ]  # fmt: skip
    if server is not None:
        command.append(f"{HOST}:{server}")
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=quiet, stderr=quiet)
    code = await process.wait()
    log = errors.read_text() if errors.exists() else ""
    rows = [row.split(";") for row in stats.read_text().splitlines()] if stats.exists() else []
    last = dict(zip(rows[0], rows[-1], strict=False)) if len(rows) > 1 else {}
    return SippRun(code == 0, f"exit {code}: {log[-2000:]}", last)
