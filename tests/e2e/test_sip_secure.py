"""TLS and SRTP with a telephone that can both, and the codecs that the others lack."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.config import EchoModes
from gateway.media.echo import EchoMode
from gateway.sip.settings import Encryption, SipSettings
from tests.support.certificate import certificate
from tests.support.fake_call import FakeCall, FakeStack
from tests.support.live_server import serving
from tests.support.telephone import HOST, free_udp, until
from voice_agent.types import FrameFlag

pytestmark = pytest.mark.e2e


@contextlib.asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[tuple[int, FakeStack]]:
    port, rtp = free_udp(2), free_udp(8)
    sip = SipSettings(port=port, rtp_ports=(rtp, rtp + 7), **settings)
    stack = FakeStack(greeting="Hello there.", reply_s=2.0, interruptible=False)
    echo = EchoModes(telephone=EchoMode.OFF)
    async with serving(stack, sip=sip, max_calls=2, echo=echo) as running:
        yield port, stack
        await until(lambda: not running.gateway.live, "the end of every call")


async def phone(uri: str, **options: Any) -> dict[str, Any]:
    """A whole call; see tests/support/baresip_phone.py."""
    options |= {"port": free_udp(2), "rtp": free_udp(8)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.baresip_phone", uri, json.dumps(options),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    result = json.loads(out)
    assert isinstance(result, dict)
    return result


def level(call: FakeCall) -> float:
    """Of the caller's tone, at the server."""
    frames = [f.pcm.astype(float) for f in call.heard if f.flag is FrameFlag.RECEIVED]
    return float(np.median([np.abs(frame).mean() for frame in frames]))


async def test_signalling_over_tls(tmp_path: Path) -> None:
    own, trusted = certificate(tmp_path, HOST)
    transports = ("udp", "tcp", "tls")
    async with server(transports=transports, certificate=own) as (port, stack):
        uri = f"sip:agent@{HOST}:{port + 1};transport=tls"
        heard = await phone(uri, transport="tls", ca_file=str(trusted))
        assert heard["loudest"] > 1000, "our greeting"
        assert level(stack.calls[0]) > 3000
        stranger = tmp_path / "other"
        stranger.mkdir()
        refused = await phone(uri, transport="tls", ca_file=str(certificate(stranger, HOST)[1]))
        assert "failed" in refused, "a telephone that trusts someone else hangs up at once"
        assert len(stack.calls) == 1


@pytest.mark.parametrize(
    ("encryption", "mediaenc", "codec", "rate"),
    [(Encryption.SDES, "srtp-mand", "opus/48000/2", 48_000),
     (Encryption.DTLS, "dtls_srtp", "g722/16000/1", 16_000)],
)  # fmt: skip
async def test_encrypted_sound(
    encryption: Encryption, mediaenc: str, codec: str, rate: int
) -> None:
    async with server(encryption=encryption) as (port, stack):
        heard = await phone(f"sip:agent@{HOST}:{port}", mediaenc=mediaenc, codec=codec, seconds=4.0)
        assert heard["secured"], heard
        assert heard["rate"] == rate
        assert heard["loudest"] > 1000, "our greeting"
        assert level(stack.calls[0]) == pytest.approx(8000 * 2 / np.pi, rel=0.1)


async def test_plain_sound_is_refused_where_encryption_is_required() -> None:
    async with server(encryption=Encryption.SDES_REQUIRED) as (port, stack):
        heard = await phone(f"sip:agent@{HOST}:{port}")
        assert heard == {"failed": 488}
    assert stack.calls == []
