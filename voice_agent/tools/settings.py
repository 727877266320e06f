"""The `[tools]` section of an agent's file: which tools there are, and where their work is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .base import OnInterrupt

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
Timeout = Annotated[float, Field(gt=0, le=120)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Webhook(_Part):
    """One tool: an HTTP request with the arguments. `${NAME}` in a header is read from the
    environment."""

    url: str
    description: str = Field(min_length=1)
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    method: Literal["POST", "GET"] = "POST"
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    read_only: bool = False
    timeout_s: Timeout | None = None
    on_interrupt: OnInterrupt = "finish"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
            raise ValueError("url: an address such as https://host/path is needed")
        if self.parameters.get("type") != "object":
            raise ValueError('parameters: a JSON schema of type "object" is needed')
        return self


class McpServer(_Part):
    """Every tool of an MCP server, or those in `only`. Either `url` or `command`.

    read_only: names of its tools that change nothing; what the server itself says is not trusted.
    """

    url: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    only: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    timeout_s: Timeout | None = None
    on_interrupt: OnInterrupt = "finish"

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.url) == bool(self.command):
            raise ValueError("either url or command is needed")
        return self


class ToolsSection(_Part):
    """fillers: said one after the other while the caller waits; times are of one tool's run."""

    timeout_s: Timeout = 10.0
    max_chars: int = Field(default=2000, ge=100, le=20_000)
    fillers: tuple[str, ...] = ("One moment, please.",)
    filler_after_ms: int = Field(default=1200, ge=0, le=3000)
    end_call: bool = False
    transfer: dict[str, str] = Field(default_factory=dict)
    """What the model may say -> where the call goes."""
    send_dtmf: bool = False
    python: tuple[str | Callable[..., Any], ...] = ()
    """`module:function`; from Python also the functions themselves."""
    webhooks: dict[str, Webhook] = Field(default_factory=dict)
    mcp: dict[str, McpServer] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in (*self.webhooks, *self.mcp):
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name for a tool: letters, digits, _ and -")
        return self

    @property
    def any(self) -> bool:
        """Whether there is a tool at all."""
        return bool(
            self.end_call
            or self.transfer
            or self.send_dtmf
            or self.python
            or self.webhooks
            or self.mcp
        )
