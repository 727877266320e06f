"""The telephone side's settings, and the texts that baresip is started with.

baresip ignores what it can't read, so nothing reaches it unchecked.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from voice_agent.errors import UsageError

CODECS = {
    "opus": "opus/48000/1",  # mono; the SDP says 2, as RFC 7587 wants
    "g722": "g722/16000/1",
    "pcmu": "pcmu/8000/1",
    "pcma": "pcma/8000/1",
}
TRANSPORTS = ("udp", "tcp", "tls")
RTP_PORTS_PER_CALL = 4  # RTP and RTCP, and as many that baresip keeps for video
SYSTEM_CA = Path("/etc/ssl/certs")
_TOKEN = re.compile(r"[A-Za-z0-9.!~*'&=+$,?/_%-]+")
_SECRET = re.compile(r'[^"\\\x00-\x1f\x7f]*')
_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?|\[[0-9a-fA-F:]+\](:\d{1,5})?")


class Encryption(StrEnum):
    """Of the sound. SDES: when the other side offers it; SDES_REQUIRED, DTLS: nothing else."""

    NONE = "none"
    SDES = "sdes"
    SDES_REQUIRED = "sdes-required"
    DTLS = "dtls"


_MEDIAENC = {
    Encryption.NONE: None,
    Encryption.SDES: "srtp",
    Encryption.SDES_REQUIRED: "srtp-mand",
    Encryption.DTLS: "dtls_srtp",
}


@dataclass(frozen=True, slots=True)
class Trunk:
    """An account at a provider or a switch. registrar: `host[:port]`; user: of our address there.

    expires_s: between registrations; 0: none, calls only go out through it.
    """

    registrar: str
    user: str
    password: str = field(default="", repr=False)
    auth_user: str = ""
    transport: str = "udp"
    expires_s: int = 300
    proxy: str = ""


@dataclass(frozen=True, slots=True)
class SipSettings:
    """host: the address to listen on, one of this machine's. public: it may be a public one.

    port: UDP and TCP; TLS listens on the next one. rtp_ports: first and last. allow: patterns of
    `user@host` that may call; empty: whoever reaches the port. direct: calls that don't come
    through the trunk are answered.
    """

    host: str = "127.0.0.1"
    port: int = 5060
    public: bool = False
    transports: tuple[str, ...] = ("udp", "tcp")
    certificate: Path | None = None
    ca_file: Path | None = None
    rtp_ports: tuple[int, int] = (20000, 20999)
    codecs: tuple[str, ...] = ("opus", "g722", "pcmu", "pcma")
    encryption: Encryption = Encryption.NONE
    allow: tuple[str, ...] = ()
    user: str = "voice-agent"
    agent: str | None = None
    direct: bool = True
    trunk: Trunk | None = None

    def allows(self, caller: str) -> bool:
        """caller: `sip:user@host`, with or without port and parameters."""
        if not self.allow:
            return True
        who = address(caller)
        return any(fnmatch.fnmatchcase(who, pattern.lower()) for pattern in self.allow)


def address(uri: str) -> str:
    """`user@host` of a SIP address, in lower case; the host alone where there is no user."""
    text = uri.strip()
    if "<" in text:
        text = text[text.index("<") + 1 :].partition(">")[0]
    text = re.sub(r"^sips?:", "", text, flags=re.IGNORECASE)
    text = re.split(r"[;?]", text, maxsplit=1)[0]
    return re.sub(r":\d+$", "", text).lower()


def check(settings: SipSettings, max_calls: int) -> None:
    """Raises UsageError VA500 (address), VA501 (another setting), VA509 (no SIP stack here)."""
    if importlib.util.find_spec("baresip") is None:
        raise UsageError(
            "telephone calls need baresip: pip install --pre 'voice-agent[sip]'", code="VA509"
        )
    _check_host(settings)
    if unknown := set(settings.codecs) - CODECS.keys():
        raise _wrong("codecs", f"{', '.join(sorted(unknown))}: choose from {', '.join(CODECS)}")
    if not settings.codecs:
        raise _wrong("codecs", "name at least one")
    if not settings.transports or set(settings.transports) - set(TRANSPORTS):
        raise _wrong("transports", f"choose from {', '.join(TRANSPORTS)}")
    if "tls" in settings.transports and settings.certificate is None:
        raise _wrong("certificate", "transport tls needs a PEM file with key and certificate")
    for name in ("certificate", "ca_file"):
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            raise _wrong(name, f"there is no file {path}")
        if path is not None and any(c.isspace() for c in str(path)):
            raise _wrong(name, "a path with spaces can't be handed on")
    first, last = settings.rtp_ports
    if not 1024 <= first < last <= 65535:
        raise _wrong("rtp_ports", "first and last port, such as 20000-20999")
    if last - first + 1 < RTP_PORTS_PER_CALL * max_calls:
        need = RTP_PORTS_PER_CALL * max_calls
        raise _wrong("rtp_ports", f"{max_calls} calls need {need} ports")
    _check_token("user", settings.user)
    if settings.trunk is not None:
        _check_trunk(settings)
    elif not settings.direct:
        raise _wrong("direct", "without a trunk nothing but direct calls can come")


def _check_host(settings: SipSettings) -> None:
    try:
        host = ipaddress.ip_address(settings.host)
    except ValueError:
        raise UsageError(
            f"sip.host: {settings.host!r} is not an address; give one of this machine's",
            code="VA500",
        ) from None
    if host.is_unspecified:
        raise UsageError(
            f"sip.host {settings.host}: give one address, which is also the one we tell callers",
            code="VA500",
        )
    if not (host.is_private or settings.public):
        raise UsageError(
            f"sip.host {settings.host} can be reached from the Internet. Put a session border "
            "controller in front and listen on a private address (docs/TELEPHONY.md), or say "
            "--sip-public.",
            code="VA500",
        )


def _check_trunk(settings: SipSettings) -> None:
    trunk = settings.trunk
    assert trunk is not None
    for name in ("registrar", "proxy"):
        value = getattr(trunk, name)
        if (value or name == "registrar") and not _HOST.fullmatch(value):
            raise _wrong(f"trunk.{name}", f"{value!r} is not host or host:port")
    _check_token("trunk.user", trunk.user)
    if trunk.auth_user:
        _check_token("trunk.auth_user", trunk.auth_user)
    if not _SECRET.fullmatch(trunk.password):
        raise _wrong("trunk.password", 'no quotes, backslashes or control characters (" \\)')
    if trunk.transport not in settings.transports:
        raise _wrong("trunk.transport", f"add {trunk.transport!r} to sip.transports")


def _check_token(name: str, value: str) -> None:
    if not _TOKEN.fullmatch(value):
        raise _wrong(name, f"{value!r} can't be part of a SIP address")


def _wrong(name: str, why: str) -> UsageError:
    return UsageError(f"sip.{name}: {why}", code="VA501")


# ------------------------------------------------------------ to the worker, as JSON


def as_json(settings: SipSettings) -> dict[str, Any]:
    """Holds the trunk's password: for the link to the worker only."""
    data = asdict(settings)
    return data | {
        name: str(data[name]) for name in ("certificate", "ca_file") if data[name] is not None
    }


def from_json(data: Mapping[str, Any]) -> SipSettings:
    names = ("transports", "rtp_ports", "codecs", "allow")
    settings = SipSettings(**{**data, **{name: tuple(data[name]) for name in names}})
    return replace(
        settings,
        certificate=Path(data["certificate"]) if data["certificate"] else None,
        ca_file=Path(data["ca_file"]) if data["ca_file"] else None,
        encryption=Encryption(data["encryption"]),
        trunk=Trunk(**data["trunk"]) if data["trunk"] else None,
    )


# ------------------------------------------------------------ baresip's texts


def stack_text(settings: SipSettings) -> str:
    """Lines of baresip's configuration beyond what its Python binding models."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    first, last = settings.rtp_ports
    lines = [
        f"sip_listen {host}:{settings.port}",
        f"sip_transports {','.join(settings.transports)}",
        f"rtp_ports {first}-{last}",
        "audio_jitter_buffer_type adaptive",
        "audio_jitter_buffer_ms 20-200",
        "opus_bitrate 24000",
        "opus_stereo no",
        "opus_sprop_stereo no",
        "opus_inbandfec yes",
        "opus_application voip",
        "opus_packet_loss 5",
        "call_hold_other_calls no",
        "sip_verify_server yes",
    ]
    if settings.certificate is not None:
        lines.append(f"sip_certificate {settings.certificate}")
    if settings.ca_file is not None:
        lines.append(f"sip_cafile {settings.ca_file}")
    elif SYSTEM_CA.is_dir():
        lines.append(f"sip_capath {SYSTEM_CA}")
    return "\n".join(lines) + "\n"


def door_account(settings: SipSettings) -> str:
    """The account that answers whatever comes to the port, and dials where there is no trunk.

    No transport is named: it then answers on all of them.
    """
    parts = [f"<sip:{settings.user}@{settings.host}>", "regint=0", "catchall=yes"]
    return ";".join([*parts, *_common(settings)])


def trunk_account(settings: SipSettings) -> str:
    """Holds the password: never to be logged."""
    trunk = settings.trunk
    assert trunk is not None
    parts = [
        f"<sip:{trunk.user}@{trunk.registrar};transport={trunk.transport}>",
        f"regint={trunk.expires_s}",
    ]
    if trunk.password:
        parts.append(f'auth_pass="{trunk.password}"')
    if trunk.auth_user:
        parts.append(f"auth_user={trunk.auth_user}")
    if trunk.proxy:
        parts.append(f'outbound="sip:{trunk.proxy};transport={trunk.transport}"')
    return ";".join([*parts, *_common(settings)])


def _common(settings: SipSettings) -> list[str]:
    parts = [
        "answermode=manual",
        "dtmfmode=rtpevent",
        "audio_codecs=" + ",".join(CODECS[name] for name in settings.codecs),
    ]
    if (mediaenc := _MEDIAENC[settings.encryption]) is not None:
        parts.append(f"mediaenc={mediaenc}")
    return parts
