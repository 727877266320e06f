"""The `[server]` section: where it listens, who may enter, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import NoDecode

Names = Annotated[tuple[str, ...], NoDecode]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def comma_separated(value: object) -> object:
    """A list as the environment writes it."""
    if isinstance(value, str):
        return tuple(p.strip() for p in value.split(",") if p.strip())
    return value


class ServerConfig(Section):
    """One port for the page, the API and the metrics."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    api_keys: Names = Field(default=(), repr=False)
    """Any of them opens everything. A key is needed for any host but loopback."""
    keys_file: Path | None = None
    """Hashes of the keys that `voice-agent keys` makes; none: the data folder's keys.json."""
    twilio_auth_token: str = Field(default="", repr=False)
    """Media streams that carry the account's signature need no key."""
    page: Literal["key", "public", "off"] = "key"
    """Whether the page asks for a key on a server that has any, lets everyone call, or is off."""
    allowed_origins: Names = ()
    allowed_hosts: Names = ()
    trusted_proxies: Names = ()
    """Addresses whose X-Forwarded-For and -Proto are believed."""
    tls_self_signed: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    """PEM files, read again when they change."""
    requests_per_minute: int = Field(default=600, ge=0)
    """Of one key, and of one address, on a server with keys; 0: any."""
    calls_per_minute: int = Field(default=60, ge=0)
    """New calls likewise."""
    max_calls_per_key: int = Field(default=0, ge=0)
    """Calls at once of one key, and of one address on a public page; 0: max_calls."""
    max_calls: int = Field(default=2, ge=1)
    """Calls at once; the models are chosen so that this many keep to the target."""
    max_http_replies: int = Field(default=64, ge=1)
    """Replies of the HTTP API that one key may have open at once."""
    drain_s: float = Field(default=30.0, ge=0)
    """After SIGTERM live calls may finish within this time."""

    @field_validator(
        "api_keys", "allowed_origins", "allowed_hosts", "trusted_proxies", mode="before"
    )
    @classmethod
    def _comma_separated(cls, value: object) -> object:
        return comma_separated(value)

    @model_validator(mode="after")
    def _one_certificate(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key need each other")
        if self.tls_certificate and self.tls_self_signed:
            raise ValueError("either tls_self_signed or a certificate of your own")
        return self

    @property
    def https(self) -> bool:
        return self.tls_self_signed or self.tls_certificate is not None
