"""The load test's own server: what it is started with, and what is said when it does not start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loadtest.options import Options
from loadtest.own_server import _ready, flags, running_server, stop, write_agents
from loadtest.plan import plan
from loadtest.scenario import load_scenario, names
from voice_agent.agent_file import load_agent
from voice_agent.config import Config, load_config
from voice_agent.errors import InternalError, UsageError
from voice_agent.plain_text import CHARS_PER_TOKEN

pytestmark = pytest.mark.unit


def config_of(options: Options, folder: Path = Path("x")) -> Config:
    scenario = load_scenario(options.scenario)
    calls = plan(scenario, options.calls, 60.0, 1, scripted=True)
    return load_config(None, flags(options, scenario, calls, folder)).config


def test_every_planned_call_has_a_line_but_in_a_flood() -> None:
    assert config_of(Options(calls=3)).server.max_calls >= 3
    assert config_of(Options(calls=3, scenario="flood")).server.max_calls == 3


def test_settings_win_and_the_naive_build_has_no_cache() -> None:
    own = config_of(Options(settings={"engine.max_num_seqs": "4", "models.voice": "piper-amy"}))
    assert (own.engine.max_num_seqs, own.models.voice) == (4, "piper-amy")
    assert own.engine.enable_prefix_caching == "radix"
    naive = config_of(Options(baseline=True))
    assert naive.engine.enable_prefix_caching == "none"
    assert naive.engine.scheduling_policy == "fcfs"


@pytest.mark.parametrize("name", names())
def test_the_instructions_of_every_scenario_leave_a_scripted_model_room(name: str) -> None:
    """Of an intruder with 2000 words, too; a server refuses what fills half of its context."""
    config = config_of(Options(scenario=name))
    calls = plan(load_scenario(name), 2, 60.0, 1, scripted=True)
    longest = max(len(call.instructions) for call in calls)
    assert longest < config.llm.context_tokens * CHARS_PER_TOKEN * 3 // 4 // 2


def test_over_sip_each_call_has_an_agent_with_its_word(tmp_path: Path) -> None:
    options = Options(calls=2, transport="sip")
    assert config_of(options).sip.enabled
    scenario = load_scenario("chatty")
    calls = plan(scenario, 2, 60.0, 1, scripted=True)
    write_agents(options, scenario, calls, tmp_path)
    for call in calls:
        path = tmp_path / "agents" / f"call{call.index}.toml"
        assert call.word in tomllib.loads(path.read_text())["instructions"]
        assert load_agent(path).limits.max_reply_tokens == scenario.reply_tokens


def python(code: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("w") as out:
        return subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=out)


async def test_a_server_that_ends_while_starting_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = python("exit('no such voice')", log)
    with pytest.raises(InternalError, match=r"(?s)ended while starting.*no such voice") as error:
        await _ready(process, log)
    assert error.value.code == "VA533"
    await stop(process)


async def test_a_server_is_ready_when_it_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import time; print('ready: http://localhost:1234/', flush=True); time.sleep(60)"
    process = python(code, log)
    try:
        assert await asyncio.wait_for(_ready(process, log), 30) == 1234
    finally:
        await stop(process)
    assert process.returncode != 0


@pytest.mark.parametrize(
    ("url", "says"), [("ftp://x", "no address"), ("http://127.0.0.1:9", "no server answers")]
)
async def test_a_server_that_is_not_there(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        await running_server(Options(url=url))
