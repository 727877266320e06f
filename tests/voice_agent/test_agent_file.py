"""Agent files: typed, checked with file and line, reloaded for new calls."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from voice_agent.agent_file import (
    AgentFile,
    AgentShelf,
    Limits,
    SamplingSettings,
    agent_names,
    find_agent,
    load_agent,
    shipped_agent,
)
from voice_agent.barge_in import BargeIn
from voice_agent.endpointing import PRESETS, TurnTaking
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit


def write(folder: Path, text: str, name: str = "a") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_the_shipped_agent_greets_shortly() -> None:
    agent = load_agent(shipped_agent())
    assert agent.name == "default"
    assert 0 < len(agent.greeting.split()) <= 8
    assert agent.turn_taking.resolve() == PRESETS["balanced"]


def test_the_shipped_file_is_the_one_at_the_root() -> None:
    root = Path(__file__).parents[2] / "agents" / "default.toml"
    assert root.read_bytes() == shipped_agent().read_bytes()


def test_defaults_need_only_instructions(tmp_path: Path) -> None:
    agent = load_agent(write(tmp_path, 'instructions = "Be kind."\n', "bob"))
    assert (agent.name, agent.greeting, agent.language) == ("bob", "", "en")
    assert agent.limits.max_call_s > 0


def test_overrides_of_a_preset(tmp_path: Path) -> None:
    text = 'instructions="x"\n[turn_taking]\npreset="patient"\nmin_silence_ms=500\n'
    taking = load_agent(write(tmp_path, text)).turn_taking.resolve()
    assert taking.min_silence_ms == 500
    assert taking.max_silence_ms == PRESETS["patient"].max_silence_ms


def test_barge_in_is_the_agents_own(tmp_path: Path) -> None:
    text = 'instructions="x"\n[barge_in]\nduck_db=6\nstop_words=["operator"]\n'
    settings = load_agent(write(tmp_path, text)).barge_in.resolve()
    assert settings == BargeIn(duck_db=6.0, stop_words=("operator",))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('instructions="x"\n\ngreting="h"\n', 3, "did you mean 'greeting'?"),
        ('instructions="x"\n[turn_taking]\npreset="fast"\n', 3, "'quick', 'balanced'"),
        ('instructions="x"\n[turn_taking]\nmin_silenc_ms=3\n', 3, "turn_taking.min_silence_ms"),
        ('instructions="""\na = 1\nspeed = 9\n"""\nspeed = 9\n', 5, "speed"),
        ('instructions="x"\n[turn_taking]\nmin_silence_ms=50\n', 2, "silences must satisfy"),
        ('instructions="x"\n[barge_in]\nspeaking_words=0\n', 2, "at least one word"),
        ('instructions="x"\n[barge_in]\nstop_word=["a"]\n', 3, "barge_in.stop_words"),
        ('instructions="x"\n[limits]\nidle_s = -1\n', 3, "limits.idle_s"),
        ('instructions=""\n', 1, "instructions"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_agent(path)
    assert caught.value.code == "VA441"
    assert f"{path}:{line}:" in str(caught.value)
    assert says in str(caught.value)


def test_no_instructions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"VA441.*'instructions' is missing"):
        load_agent(write(tmp_path, 'greeting="hi"\n'))


def test_not_toml(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"VA440.*line 2"):
        load_agent(write(tmp_path, 'instructions="x"\nspeed = fast\n'))


def test_another_language_names_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, 'instructions="x"\nlanguage="de"\n')
    with pytest.raises(UsageError) as caught:
        load_agent(path)
    assert caught.value.code == "VA442"
    assert f"{path}:2:" in str(caught.value)
    assert "languages/de" in str(caught.value)
    assert "voice" in str(caught.value)


def test_finding_agents(tmp_path: Path) -> None:
    own = write(tmp_path, 'instructions="x"\n', "sales")
    assert find_agent("sales", tmp_path) == own
    assert find_agent("default", tmp_path) == shipped_agent()
    assert agent_names(tmp_path) == ["default", "sales"]
    for name in ("nobody", "../etc/passwd", "", ".hidden"):
        with pytest.raises(UsageError, match="VA443"):
            find_agent(name, tmp_path)


def test_an_edited_file_serves_new_calls(tmp_path: Path) -> None:
    path = write(tmp_path, 'instructions="one"\n')
    shelf = AgentShelf(tmp_path)
    first, _ = shelf.get("a")
    assert shelf.get("a")[0] is first
    path.write_text('instructions="two two"\n')
    os.utime(path, ns=(1, 1))
    assert shelf.get("a")[0].instructions == "two two"
    assert first.instructions == "one"


def test_an_edit_into_an_error_keeps_the_last_good_one(tmp_path: Path) -> None:
    path = write(tmp_path, 'instructions="good"\n')
    shelf = AgentShelf(tmp_path)
    shelf.get("a")
    path.write_text("speed = 99\n")
    agent, error = shelf.get("a")
    assert agent.instructions == "good"
    assert error is not None
    assert error.code == "VA441"
    path.unlink()
    assert shelf.get("a")[0].instructions == "good"


def test_no_good_version_at_all(tmp_path: Path) -> None:
    write(tmp_path, "speed = 99\n")
    with pytest.raises(UsageError, match="VA441"):
        AgentShelf(tmp_path).get("a")


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "CONFIG.md").read_text("utf-8")
    keys = set(AgentFile.model_fields) - {"name"}
    keys |= {f.name for kind in (TurnTaking, BargeIn) for f in dataclasses.fields(kind)}
    keys |= set(Limits.model_fields) | set(SamplingSettings.model_fields)
    missing = [k for k in keys if not re.search(rf"`?\b{k}\b", text)]
    assert missing == []
