"""A certificate of our own, so that a browser on another machine may use its microphone."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING

from voice_agent.errors import UsageError
from voice_agent.machine import own_names

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

DAYS = 365
_RENEW_DAYS = 30


def self_signed(folder: Path, host: str) -> tuple[Path, Path]:
    """(certificate, key) in PEM under `folder`; made anew when near its end or for another host.

    Raises UsageError VA472 when the folder cannot be written.
    """
    stem = "tls-" + "".join(c if c.isalnum() else "-" for c in host)
    certificate, key = folder / f"{stem}.crt", folder / f"{stem}.key"
    if certificate.is_file() and key.is_file() and _lasts(certificate):
        return certificate, key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _make(certificate, key, host)
    except OSError as e:
        raise UsageError(f"cannot write a certificate to {folder}: {e}", code="VA472") from e
    return certificate, key


def _lasts(certificate: Path) -> bool:
    from cryptography import x509

    try:
        end = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except ValueError:
        return False
    return end - dt.datetime.now(dt.UTC) > dt.timedelta(days=_RENEW_DAYS)


def _make(certificate: Path, key: Path, host: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "voice-agent")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    _private(
        key,
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def _names(host: str) -> list[GeneralName]:
    from cryptography import x509

    names: dict[str, GeneralName] = {}
    for one in ("localhost", *own_names(), host.strip("[]")):
        try:
            names[one] = x509.IPAddress(ipaddress.ip_address(one))
        except ValueError:
            names[one] = x509.DNSName(one)
    return list(names.values())


def _private(path: Path, data: bytes) -> None:
    draft = path.with_suffix(".tmp")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
        f.write(data)
    draft.replace(path)
