"""The server's configuration: one TOML file, the environment and flags; frozen after start.

Later beats earlier: default < file < environment (`VOICE_AGENT__SECTION__KEY`) < flag.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from voice_agent.engine_section import EngineSection
from voice_agent.errors import UsageError
from voice_agent.explain import dotted_names, explain, section_of, suggest
from voice_agent.history_section import HistoryConfig
from voice_agent.llm_section import LlmSection
from voice_agent.load_section import LoadConfig
from voice_agent.rtc_section import RtcConfig
from voice_agent.server_section import Names, Section, ServerConfig, comma_separated
from voice_agent.sip_section import SipSection
from voice_agent.toml_lines import key_lines, line_of

ENV_PREFIX = "VOICE_AGENT__"
FILE_NAME = "voice-agent.toml"
SECRETS = frozenset(
    {
        "server.api_keys",
        "server.twilio_auth_token",
        "llm.api_key",
        "llm.second.api_key",
        "sip.trunk.password",
        "rtc.ice_servers",
        "history.url",
    }
)


class ModelsConfig(Section):
    """`auto`, a name of `voice-agent models list`, or a path of your own."""

    stt: str = "auto"
    llm: str = "auto"
    voice: str = "auto"
    fetch: bool = True
    """Whether `up` may download what is missing."""
    sources: dict[str, str] = Field(default_factory=dict)
    """name -> local path, or `hf:owner/repo/file#sha256=HEX`."""


Echo = Literal["off", "on", "auto"]


class EchoConfig(Section):
    """Where our own voice is taken out of what the caller's side sends back: never, always, or once
    it was found there."""

    page: Echo = "off"
    """The browser's own canceller does it."""
    realtime: Echo = "off"
    """Programs that send and get 24 kHz sound."""
    telephone: Echo = "auto"
    """Lines that carry G.711."""


class LogConfig(Section):
    format: Literal["text", "json"] = "text"
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class PrivacyConfig(Section):
    content: bool = False
    """Whether what was said may be written down: in logs, traces, spans, recordings and the call
    history."""


class TraceConfig(Section):
    """One record for each turn, beside the log."""

    folder: Path | None = None
    """JSON lines go here; none: they are not written."""
    rotate_mb: int = Field(default=64, ge=1)
    keep_files: int = Field(default=8, ge=1)
    queue: int = Field(default=1024, ge=1)
    """Records that may wait for a slow disk; further ones are dropped and counted."""
    otlp: str = ""
    """Address of an OpenTelemetry collector (OTLP over HTTP), for example http://host:4318."""


class RecordingConfig(Section):
    """The sound of calls, and what replays them."""

    folder: Path | None = None
    """Calls are recorded here; none: they are not."""
    announcement: str = ""
    """Said to every caller before anything else."""
    keep_days: float = Field(default=30.0, gt=0)
    """Older recordings are deleted."""
    replays: bool = True
    """Whether a call's inputs and model outputs are kept too, for `voice-agent replay`."""


class VoiceConfig(Section):
    cache_s: float = Field(default=300.0, ge=0)
    """Seconds of sound kept of what the operator wrote; 0: everything is voiced when it is said."""


class EarlyConfig(Section):
    """Work on an answer before the caller has surely finished."""

    llm: bool = True
    voice: bool = True
    tokens_per_minute: float = Field(default=600.0, ge=0)
    """Tokens that one call may throw away in a minute."""
    voice_s_per_minute: float = Field(default=30.0, ge=0)
    """Seconds of voice likewise."""


class ToolsConfig(Section):
    """What the agents' tools may do on this server."""

    private_hosts: Names = ()
    """Names, addresses and networks that tools may connect to although they are not public."""

    @field_validator("private_hosts", mode="before")
    @classmethod
    def _comma_separated(cls, value: object) -> object:
        return comma_separated(value)

    @field_validator("private_hosts")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            if "/" in entry:
                ip_network(entry, strict=False)
        return value


class Config(BaseSettings):
    """Everything the server is started with. Frozen; unknown keys are errors."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    profile: Literal["auto", "cpu", "gpu"] = "auto"
    target_ms: int = Field(default=0, ge=0)
    """Voice-to-voice goal; 0: 600 on a CPU, 300 on a GPU."""
    agents_dir: Path = Path("agents")
    default_agent: str = "default"
    server: ServerConfig = ServerConfig()
    models: ModelsConfig = ModelsConfig()
    llm: LlmSection = LlmSection()
    engine: EngineSection = EngineSection()
    rtc: RtcConfig = RtcConfig()
    echo: EchoConfig = EchoConfig()
    sip: SipSection = SipSection()
    voice: VoiceConfig = VoiceConfig()
    early: EarlyConfig = EarlyConfig()
    load: LoadConfig = LoadConfig()
    log: LogConfig = LogConfig()
    tools: ToolsConfig = ToolsConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    trace: TraceConfig = TraceConfig()
    recording: RecordingConfig = RecordingConfig()
    history: HistoryConfig = HistoryConfig()

    @model_validator(mode="after")
    def _content_allowed(self) -> Self:
        if self.recording.folder is not None and not self.privacy.content:
            raise ValueError("recording.folder is content: it needs privacy.content = true")
        if self.history.transcripts and not self.privacy.content:
            raise ValueError("history.transcripts is content: it needs privacy.content = true")
        return self


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and where each value came from: dotted name -> `default`, `FILE:LINE`,
    the environment variable's name, or `flag`."""

    config: Config
    origins: Mapping[str, str]
    file: Path | None

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(name, value as TOML writes it, origin); secrets are counted, not shown."""
        for name in dotted_names(Config):
            value: Any = self.config
            for piece in name.split("."):
                value = getattr(value, piece)
            shown = _hidden(value) if name in SECRETS else _toml(value)
            yield name, shown, self.origins.get(name, "default")


def load_config(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Loaded:
    """Merge the layers. file: None looks at VOICE_AGENT_CONFIG, ./voice-agent.toml, then the
    user's folder. flags: dotted name -> value; None values are not set.

    Raises UsageError VA430 (unreadable file), VA431 (unknown key), VA432 (bad value).
    """
    path = file or find_file()
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if path is not None:
        data, lines = _read(path)
        _merge(merged, data)
        for name in _leaves(data):
            line = line_of(lines, name.split("."))
            origins[name] = f"{path}:{line}" if line else str(path)
    env = _environment()
    _merge(merged, env)
    origins |= {name: _variable(name) for name in _leaves(env)}
    for name, value in (flags or {}).items():
        if value is not None:
            _merge(merged, _nest(name, value))
            origins[name] = "flag"
    try:
        config = Config(**merged)
    except ValidationError as e:
        unknown = any(item["type"] == "extra_forbidden" for item in e.errors())
        text = explain(e, Config, lambda p: _origin(origins, p, path))
        raise UsageError(text, code="VA431" if unknown else "VA432") from e
    known = {n for name in origins for n in dotted_names(Config) if _covers(n, name)}
    return Loaded(config, {n: _origin(origins, n.split("."), path) for n in known}, path)


def find_file() -> Path | None:
    """The configuration file that applies when none is named; None: there is none."""
    if given := os.environ.get("VOICE_AGENT_CONFIG"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    home = Path(base) if base else Path.home() / ".config"
    for path in (Path(FILE_NAME), home / "voice-agent" / "config.toml"):
        if path.is_file():
            return path
    return None


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    try:
        text = path.read_text("utf-8")
        return tomllib.loads(text), key_lines(text)
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the configuration {path}: {e}", code="VA430") from e
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path}: not valid TOML: {e}", code="VA430") from e


def _environment() -> dict[str, Any]:
    """What VOICE_AGENT__* sets. A variable that names no key is an error, not a silence."""
    for variable in os.environ:
        if variable.upper().startswith(ENV_PREFIX):
            path = variable[len(ENV_PREFIX) :].lower().split("__")
            model: type[BaseModel] | None = Config
            for piece in path[:-1]:
                model = section_of(model, piece)
            if model is None or path[-1] not in model.model_fields:
                name = ".".join(path)
                raise UsageError(
                    f"environment variable {variable}: unknown key {name!r}{suggest(Config, path)}",
                    code="VA431",
                )
    try:
        return EnvSettingsSource(Config)()
    except SettingsError as e:
        raise UsageError(f"environment: {e}", code="VA432") from e


def _variable(name: str) -> str:
    """The environment variable that set a key, or a table around it as JSON."""
    given = {v.upper() for v in os.environ}
    path = name.split(".")
    while len(path) > 1 and ENV_PREFIX + "__".join(path).upper() not in given:
        path.pop()
    return ENV_PREFIX + "__".join(path).upper()


def _origin(origins: Mapping[str, str], path: Any, file: Path | None) -> str:
    """The origin of a key, of a table around it, or of something inside it."""
    name = ".".join(str(p) for p in path)
    if name in origins:
        return origins[name]
    around = [o for known, o in origins.items() if _covers(name, known) or _covers(known, name)]
    return ", ".join(dict.fromkeys(around)) or (str(file) if file else "configuration")


def _covers(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer + ".")


def _leaves(data: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield before + key


def _nest(name: str, value: Any) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    return {first: _nest(rest, value) if rest else value}


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, dict) else value


def _hidden(secret: str | tuple[str, ...]) -> str:
    return f"({len([secret] if isinstance(secret, str) and secret else secret)} set)"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}" = {_toml(v)}' for k, v in value.items()) + "}"
    return f'"{value}"'
