"""The `[rtc]` section: how the media of WebRTC calls is carried."""

from __future__ import annotations

from ipaddress import IPv4Address

from pydantic import Field, field_validator, model_validator

from .server_section import Names, Section, comma_separated


class IceServerConfig(Section):
    """A STUN or TURN server that clients may use to reach this one."""

    urls: Names
    username: str = ""
    credential: str = Field(default="", repr=False)
    secret: str = Field(default="", repr=False)
    """Shared with a TURN server (coturn's `static-auth-secret`): clients get accounts that end."""

    @model_validator(mode="after")
    def _one_account(self) -> IceServerConfig:
        if self.secret and (self.username or self.credential):
            raise ValueError("write either secret, or username and credential")
        if bool(self.username) != bool(self.credential):
            raise ValueError("username and credential belong together")
        return self

    @field_validator("urls", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return comma_separated(value)

    @field_validator("urls")
    @classmethod
    def _schemes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if url.split(":")[0] not in ("stun", "stuns", "turn", "turns"):
                raise ValueError(f"{url!r}: write turn:HOST:PORT, turns:..., or stun:...")
        return value


class RtcConfig(Section):
    workers: int = Field(default=0, ge=0, le=64)
    """Processes for sockets, encryption and codecs; 0: the server's own. Flag --media-workers."""
    ports: str = ""
    """UDP ports of media, `A-B`; any if empty."""
    public_address: str = ""
    """IPv4 that clients are told to send to, where a NAT maps it to this machine."""
    ice_servers: tuple[IceServerConfig, ...] = ()
    hold_s: float = Field(default=30.0, ge=0, le=300)
    """A call of the page waits so long for it when the connection was lost; 0: it ends at once."""

    @field_validator("ports")
    @classmethod
    def _range(cls, value: str) -> str:
        cls.port_range_of(value)
        return value

    @field_validator("public_address")
    @classmethod
    def _address(cls, value: str) -> str:
        if value:
            IPv4Address(value)
        return value

    @staticmethod
    def port_range_of(text: str) -> tuple[int, int] | None:
        """Raises ValueError."""
        if not text:
            return None
        first, dash, last = text.partition("-")
        if not (dash and first.strip().isdigit() and last.strip().isdigit()):
            raise ValueError(f"{text!r} is no range of ports; write it as 40000-40100")
        low, high = int(first), int(last)
        if not 1024 <= low <= high <= 65_535:
            raise ValueError(f"ports lie between 1024 and 65535, the first one first: {text!r}")
        return low, high

    @property
    def port_range(self) -> tuple[int, int] | None:
        return self.port_range_of(self.ports)
