"""A configuration read again while the server runs: what of it new calls get, what waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from .config import Config
from .explain import dotted_names

LIVE = frozenset(
    {
        "agents_dir",
        "default_agent",
        "early.llm",
        "early.tokens_per_minute",
        "early.voice",
        "early.voice_s_per_minute",
        "echo.page",
        "echo.realtime",
        "log.format",
        "log.level",
        "rtc.ice_servers",
        "server.allowed_hosts",
        "server.allowed_origins",
        "server.api_keys",
        "server.calls_per_minute",
        "server.drain_s",
        "server.max_calls",
        "server.max_calls_per_key",
        "server.max_http_replies",
        "server.requests_per_minute",
        "server.twilio_auth_token",
    }
)
"""Keys whose new value new calls and requests get. Everything else is read once, at start."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Dotted names of keys. taken: in force now. waiting: changed, and in force after a restart."""

    taken: tuple[str, ...]
    waiting: tuple[str, ...]


def merge(old: Config, new: Config) -> tuple[Config, Reloaded]:
    """`old` with what may change of `new`, and what has changed."""
    changed = [n for n in dotted_names(Config) if value_of(old, n) != value_of(new, n)]
    taken = tuple(n for n in changed if n in LIVE)
    waiting = tuple(n for n in changed if n not in LIVE)
    merged = old
    for name in taken:
        merged = _with(merged, name.split("."), value_of(new, name))
    return merged, Reloaded(taken, waiting)


def value_of(config: Config, name: str) -> Any:
    value: Any = config
    for piece in name.split("."):
        value = getattr(value, piece)
    return value


def _with(model: Any, path: list[str], value: Any) -> Any:
    """A copy of a frozen model with one value of it, or of a model in it, replaced."""
    first, *rest = path
    inner: BaseModel | Mapping[str, Any] = getattr(model, first)
    return model.model_copy(update={first: _with(inner, rest, value) if rest else value})
