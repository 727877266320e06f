"""TLS: the pair that is served follows its files, and a broken one changes nothing."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import httpx
import pytest

from gateway.tls import ServedCertificate
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving
from voice_agent.cli.tls import self_signed
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit


def pair(folder: Path) -> tuple[Path, Path]:
    return self_signed(folder, "localhost")


def replace(target: tuple[Path, Path], source: tuple[Path, Path]) -> None:
    for to, of in zip(target, source, strict=True):
        draft = to.with_suffix(".new")
        draft.write_bytes(of.read_bytes())
        draft.replace(to)


async def served(port: int) -> bytes:
    """The certificate (DER) a new connection gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(der)


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


async def test_a_new_certificate_is_served_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, new = pair(tmp_path / "a"), pair(tmp_path / "b")
    certificate = ServedCertificate(*files)
    options = {"ssl_context_factory": lambda config, default: certificate.context}
    async with serving(FakeStack(), serve=options, public_certificate=True) as server:
        first = der(files[0])
        assert await served(server.port) == first
        trust = ssl.create_default_context(cafile=files[0])
        async with httpx.AsyncClient(verify=trust) as client:
            page = await client.get(f"https://localhost:{server.port}/")
            assert page.headers["strict-transport-security"].startswith("max-age=")
            assert not certificate.refresh()
            files[1].write_text("not a key")
            assert not certificate.refresh()
            assert not certificate.refresh(), "said once"
            assert len([r for r in caplog.records if "does not work" in r.getMessage()]) == 1
            assert await served(server.port) == first
            replace(files, new)
            assert certificate.refresh()
            assert await served(server.port) == der(new[0]) != first
            live = await client.get(f"https://localhost:{server.port}/healthz")
            assert live.status_code == 200, "a live connection goes on"
        assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2
        os.unlink(files[0])
        assert not certificate.refresh()
        assert await served(server.port) == der(new[0])


def test_what_does_not_work(tmp_path: Path) -> None:
    good, other = pair(tmp_path / "a"), pair(tmp_path / "b")
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key(good[1].read_bytes(), None)
    locked = tmp_path / "locked.key"
    secret = s.BestAvailableEncryption(b"password")
    locked.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, secret))
    for certificate, key_file, why in (
        (good[0], other[1], "its own key"),
        (good[0], tmp_path / "none", "No such file"),
        (good[1], good[1], "PEM"),
        (good[0], locked, "without a password"),
    ):
        with pytest.raises(UsageError, match=why) as caught:
            ServedCertificate(certificate, key_file)
        assert caught.value.code == "VA459"
