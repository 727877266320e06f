"""The agent itself: a typed TOML file of instructions, voice, turn-taking and limits."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from voice_agent.barge_in import BargeIn
from voice_agent.endpointing import PRESETS, TurnTaking
from voice_agent.errors import UsageError
from voice_agent.explain import explain
from voice_agent.toml_lines import key_lines, line_of
from voice_agent.tools.settings import ToolsSection

DEFAULT = "default"
RECOVERY = "Sorry, I didn't catch that. Could you say it again?"
IDLE_PROMPTS = ("Are you still there?", "I can't hear you. Are you there?")
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _TurnTakingBase(_Part):
    preset: Literal["quick", "balanced", "patient"] = "balanced"

    @model_validator(mode="after")
    def _possible(self) -> _TurnTakingBase:
        self.resolve()
        return self

    def resolve(self) -> TurnTaking:
        """The preset with the overrides applied."""
        names = {f.name for f in dataclasses.fields(TurnTaking)}
        given = {n: v for n, v in self.model_dump().items() if n in names and v is not None}
        return dataclasses.replace(PRESETS[self.preset], **given)


if TYPE_CHECKING:
    TurnTakingSettings = _TurnTakingBase
else:
    TurnTakingSettings = create_model(
        "TurnTakingSettings",
        __base__=_TurnTakingBase,
        **{
            f.name: ((int if isinstance(f.default, int) else float) | None, None)
            for f in dataclasses.fields(TurnTaking)
        },
    )
    """A preset and any field of `TurnTaking`, all optional."""


class _BargeInBase(_Part):
    @model_validator(mode="after")
    def _possible(self) -> _BargeInBase:
        self.resolve()
        return self

    def resolve(self) -> BargeIn:
        return BargeIn(**self.model_dump())


if TYPE_CHECKING:
    BargeInSettings = _BargeInBase
else:
    BargeInSettings = create_model(
        "BargeInSettings",
        __base__=_BargeInBase,
        **{
            f.name: (get_type_hints(BargeIn)[f.name], f.default)
            for f in dataclasses.fields(BargeIn)
        },
    )
    """Any field of `BargeIn`."""


class SamplingSettings(_Part):
    """How the next word is chosen; temperature 0 is the likeliest one."""

    temperature: float = Field(default=0.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = None


class Limits(_Part):
    """When a call or a reply is over, whatever happens. Seconds and tokens."""

    max_call_s: float = Field(default=1800.0, gt=0)
    idle_s: float = Field(default=20.0, gt=0)
    """Silence on both sides before each idle prompt, and before the goodbye after the last one."""
    silence_s: float = Field(default=600.0, gt=0)
    """Without a word of the caller's, however loud it is there."""
    max_reply_tokens: int = Field(default=160, ge=1)


class AgentFile(_Part):
    """One agent, frozen. A changed file makes a new one for new calls (`AgentShelf`)."""

    name: str
    instructions: str = Field(min_length=1)
    greeting: str = ""
    speaks_first: bool = True
    goodbye: str = ""
    recovery: str = Field(default=RECOVERY, min_length=1)
    idle_prompts: tuple[str, ...] = IDLE_PROMPTS
    phrases: tuple[str, ...] = ()
    """What the agent will often say: their sound is made at start."""
    language: str = "en"
    voice: str = ""
    speed: float = Field(default=1.0, ge=0.5, le=2.0)
    tenant: str = Field(default="default", min_length=1)
    turn_taking: TurnTakingSettings = TurnTakingSettings()
    barge_in: BargeInSettings = BargeInSettings()
    sampling: SamplingSettings = SamplingSettings()
    limits: Limits = Limits()
    lexicon: dict[str, str] = Field(default_factory=dict)
    tools: ToolsSection = ToolsSection()

    @property
    def temperature(self) -> float:
        return self.sampling.temperature


def load_agent(path: Path) -> AgentFile:
    """Read and check one agent file; its name is the file's.

    Raises UsageError VA440 (unreadable), VA441 (wrong key or value, with file and line),
    VA442 (a language that is not there yet).
    """
    try:
        text = path.read_text("utf-8")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the agent {path}: {e}", code="VA440") from e
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path}: not valid TOML: {e}", code="VA440") from e
    lines = key_lines(text)

    def where(key: Sequence[str | int]) -> str:
        line = line_of(lines, key)
        return f"{path}:{line}" if line else str(path)

    try:
        agent = AgentFile(**{"name": path.stem, **data})
    except ValidationError as e:
        raise UsageError(explain(e, AgentFile, where), code="VA441") from e
    _check_language(agent, where(["language"]))
    return agent


def find_agent(name: str, agents_dir: Path) -> Path:
    """`agents_dir`/NAME.toml, or the shipped default. Raises UsageError VA443."""
    if name and set(name) <= _NAME_CHARS and not name.startswith("."):
        path = agents_dir / f"{name}.toml"
        if path.is_file():
            return path
        if name == DEFAULT:
            return shipped_agent()
    known = ", ".join(agent_names(agents_dir))
    raise UsageError(
        f"there is no agent {name!r} in {agents_dir} (known: {known}); "
        f"make one with: voice-agent init {name or 'NAME'}",
        code="VA443",
    )


def agent_names(agents_dir: Path) -> list[str]:
    """Every agent a call may ask for, sorted."""
    return sorted({DEFAULT, *(p.stem for p in agents_dir.glob("*.toml"))})


def shipped_agent() -> Path:
    """The commented default that comes with the package."""
    return Path(str(resources.files("voice_agent").joinpath("agents", "default.toml")))


class AgentShelf:
    """Agents by name, read again for a new call when the file changed.

    A file that was edited into an error keeps its last good version, and says why.
    """

    def __init__(self, agents_dir: Path) -> None:
        self._dir = agents_dir
        self._kept: dict[str, tuple[tuple[int, int], AgentFile]] = {}

    def get(self, name: str) -> tuple[AgentFile, UsageError | None]:
        """(the agent, why its newest text was not taken). Raises UsageError when none is good."""
        kept = self._kept.get(name)
        try:
            path = find_agent(name, self._dir)
            stat = os.stat(path)
            mark = (stat.st_mtime_ns, stat.st_size)
            if kept is not None and kept[0] == mark:
                return kept[1], None
            agent = load_agent(path)
        except UsageError as e:
            if kept is None:
                raise
            return kept[1], e
        self._kept[name] = (mark, agent)
        return agent, None


def _check_language(agent: AgentFile, where: str) -> None:
    folder = resources.files("voice_agent").joinpath("languages")
    if agent.language == "en":
        return
    missing = [
        f"voice_agent/languages/{agent.language}/ (numbers, acknowledgements, clause cues)",
        "a recogniser chosen and measured for it",
        "a voice and its phonemes",
    ]
    if folder.joinpath(agent.language).is_dir():
        missing = missing[1:]
    raise UsageError(
        f"{where}: language {agent.language!r} is not there yet; missing: {'; '.join(missing)}. "
        'Use language = "en"',
        code="VA442",
    )
