"""TLS and SRTP with a telephone that can both, and the codecs that the others lack."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.config import EchoModes
from gateway.media.echo import EchoMode
from gateway.sip.settings import Encryption, SipSettings
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


def certificate(folder: Path) -> tuple[Path, Path]:
    """(key and certificate for the server, certificate for whoever trusts it)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    own, trusted = folder / "own.pem", folder / "trusted.pem"
    own.write_bytes(secret + public)
    trusted.write_bytes(public)
    return own, trusted


async def test_signalling_over_tls(tmp_path: Path) -> None:
    own, trusted = certificate(tmp_path)
    transports = ("udp", "tcp", "tls")
    async with server(transports=transports, certificate=own) as (port, stack):
        uri = f"sip:agent@{HOST}:{port + 1};transport=tls"
        heard = await phone(uri, transport="tls", ca_file=str(trusted))
        assert heard["loudest"] > 1000, "our greeting"
        assert level(stack.calls[0]) > 3000
        stranger = tmp_path / "other"
        stranger.mkdir()
        refused = await phone(uri, transport="tls", ca_file=str(certificate(stranger)[1]))
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
