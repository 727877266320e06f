"""The part `[sip]` of the configuration: the telephone side, off unless asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from voice_agent.server_section import Names, Section, comma_separated


class TrunkSection(Section):
    """An account at a provider or a switch; none while `registrar` is empty."""

    registrar: str = ""
    """`host` or `host:port`."""
    user: str = ""
    """Of our address there, often the telephone number."""
    password: str = Field(default="", repr=False)
    auth_user: str = ""
    """Where the provider wants another name beside the password."""
    transport: Literal["udp", "tcp", "tls"] = "udp"
    expires_s: int = Field(default=300, ge=0)
    """Between registrations; 0: none."""
    proxy: str = ""
    """Everything to the registrar goes through this `host:port`."""


class SipSection(Section):
    """Telephone calls over SIP; flag `--sip`."""

    enabled: bool = False
    host: str = "127.0.0.1"
    """One of this machine's addresses; a private one unless `public`."""
    port: int = Field(default=5060, ge=1, le=65534)
    """UDP and TCP; TLS listens on the next one."""
    public: bool = False
    transports: Names = ("udp", "tcp")
    certificate: Path | None = None
    """PEM with key and certificate chain, for `tls`."""
    ca_file: Path | None = None
    """Who may sign the other side's certificate; none: whoever the system trusts."""
    rtp_ports: str = "20000-20999"
    codecs: Names = ("opus", "g722", "pcmu", "pcma")
    """In order of preference."""
    encryption: Literal["none", "sdes", "sdes-required", "dtls"] = "none"
    allow: Names = ()
    """Callers as `user@host`, with `*` and `?`; empty: whoever reaches the port."""
    user: str = "voice-agent"
    """Of our own address, where there is no trunk."""
    agent: str = ""
    """Of callers who call none by its name; empty: the default agent."""
    direct: bool = True
    """Whether calls are taken that do not come through the trunk."""
    trunk: TrunkSection = TrunkSection()

    @field_validator("transports", "codecs", "allow", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return comma_separated(value)

    @field_validator("rtp_ports")
    @classmethod
    def _first_and_last(cls, value: str) -> str:
        first, dash, last = value.partition("-")
        if not (dash and first.strip().isdigit() and last.strip().isdigit()):
            raise ValueError("write the first and the last port, such as 20000-20999")
        return value

    @property
    def port_range(self) -> tuple[int, int]:
        first, _, last = self.rtp_ports.partition("-")
        return int(first), int(last)
