"""Scenarios: who calls, when, and how they behave. YAML in `loadtest/scenarios`, or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loadtest.callers.network import Network
from voice_agent.errors import UsageError

FOLDER = Path(__file__).parent / "scenarios"
Arrival = Literal["steady", "burst", "ramp"]
Seconds = Annotated[float, Field(ge=0)]
Range = tuple[Seconds, Seconds]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SlowNetwork(_Part):
    delay_ms: float = Field(default=0.0, ge=0)
    jitter_ms: float = Field(default=0.0, ge=0)
    stall_ms: float = Field(default=0.0, ge=0)
    stall_every_s: float = Field(default=0.0, ge=0)

    def path(self) -> Network:
        return Network(**self.model_dump())


class Group(_Part):
    """Callers who are alike: a share of `--calls`, or a count beside them. Seconds."""

    name: str = Field(min_length=1)
    share: float | None = Field(default=None, gt=0, le=1)
    count: int | None = Field(default=None, ge=1)
    arrive: float = Field(default=0.0, ge=0, lt=1)
    """The first of them comes after this share of the run."""
    arrival: Arrival | None = None
    """Unlike the scenario's."""
    speech: Literal["clips", "noise"] = "clips"
    pause_s: Range = (0.2, 0.7)
    """From the end of an answer to the next words."""
    sentences: int = Field(default=1, ge=1, le=20)
    """Of an answer: what a scripted one has, and what a model is asked for."""
    barge_in: float = Field(default=0.0, ge=0, le=1)
    """Share of the answers that are cut into."""
    barge_in_after_s: Range = (0.5, 1.5)
    call_s: float | None = Field(default=None, gt=0)
    """Such a call ends then and another caller takes its place; none: at the run's end."""
    prompt_words: int = Field(default=0, ge=0, le=8000)
    """Of further instructions, no two sessions' alike."""
    measured: bool = True
    """Whether its turns are in the figures above the table of groups."""
    network: SlowNetwork | None = None

    @model_validator(mode="after")
    def _how_many(self) -> Self:
        if (self.share is None) == (self.count is None):
            raise ValueError("either share (of --calls) or count is needed")
        if self.speech == "noise" and self.barge_in:
            raise ValueError("noise does not cut in")
        return self


class Scenario(_Part):
    """lines: how many calls a server of our own takes: all that come, or `--calls`."""

    name: str
    description: str = Field(min_length=1)
    arrival: Arrival = "steady"
    lines: Literal["all", "calls"] = "all"
    reply_tokens: int = Field(default=60, ge=1)
    """Of a model's answer, at most."""
    callers: tuple[Group, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        shares = [g.share for g in self.callers if g.share is not None]
        if not shares or abs(sum(shares) - 1.0) > 1e-6:
            raise ValueError("the shares of the callers must add up to 1")
        if len({g.name for g in self.callers}) < len(self.callers):
            raise ValueError("two groups have the same name")
        return self


def names() -> list[str]:
    """Of the scenarios that come along."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_scenario(name: str) -> Scenario:
    """name: one of `names()`, or a YAML file. Raises UsageError VA530."""
    try:
        import yaml
    except ImportError as error:
        raise UsageError(
            "load tests need some more packages: pip install 'voice-agent[loadtest]'", code="VA534"
        ) from error
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(names())
        raise UsageError(
            f"there is no scenario {name!r}: it is one of {known}, or a YAML file", code="VA530"
        )
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
        if not isinstance(data, dict):
            raise UsageError(f"{path}: a scenario is a mapping", code="VA530")
        return Scenario(**{"name": path.stem, **data})
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}", code="VA530") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "scenario"
        raise UsageError(f"{path}: {where}: {first['msg']}", code="VA530") from error
