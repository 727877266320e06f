"""What answers: the configuration of the language model's backend."""

from __future__ import annotations

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from voice_agent.server_section import Section

OWN_FIELDS = frozenset({"model", "messages", "stream", "stream_options"})
"""Of a request to a remote model: never replaced by `extra`."""


class RemoteSection(Section):
    """An OpenAI-compatible endpoint. Times are seconds."""

    base_url: str = ""
    """Up to and including `/v1`."""
    model: str = ""
    api_key: str = Field(default="", repr=False)
    connect_s: float = Field(default=1.0, gt=0, le=10)
    first_token_s: float = Field(default=1.5, gt=0, le=30)
    """From the request to its first text; past it the backend is slow."""
    stall_s: float = Field(default=3.0, gt=0, le=30)
    """Between two pieces of text."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request."""

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        if not value:
            return value
        url = urlsplit(value)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("an address such as http://host:8000/v1 is needed")
        if "@" in url.netloc or url.query or url.fragment:
            raise ValueError("no name, password, query or fragment belongs here; use api_key")
        return value.rstrip("/")

    @field_validator("extra")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN_FIELDS & value.keys()):
            raise ValueError(f"{', '.join(taken)} cannot be set here")
        return value

    @property
    def complete(self) -> bool:
        return bool(self.base_url and self.model)


class LlmSection(RemoteSection):
    """What answers: the engine in this process, or an engine elsewhere; and what stands behind."""

    backend: Literal["embedded", "openai"] = "embedded"
    context_tokens: int = Field(default=8192, ge=512)
    """The remote model's context."""
    fallback: Literal["none", "second", "embedded"] = "none"
    cooldown_s: float = Field(default=10.0, ge=0)
    """After a failure the fallback is asked first for this long."""
    second: RemoteSection = RemoteSection()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.backend == "embedded":
            if self.fallback != "none":
                raise ValueError('a fallback needs backend = "openai"')
            return self
        if not self.complete:
            raise ValueError('backend = "openai" needs base_url and model')
        if self.fallback == "second" and not self.second.complete:
            raise ValueError('fallback = "second" needs second.base_url and second.model')
        return self

    @property
    def remotes(self) -> dict[str, RemoteSection]:
        """The endpoints in use by the name that traces give them, the first one first."""
        if self.backend == "embedded":
            return {}
        if self.fallback == "second":
            return {"primary": self, "second": self.second}
        return {"primary": self}

    @property
    def needs_engine(self) -> bool:
        """Whether a language model is loaded into this process."""
        return "embedded" in (self.backend, self.fallback)
