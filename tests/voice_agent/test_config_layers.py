"""One file, the environment and flags: precedence, origins, and errors that help."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from voice_agent.config import Config, Loaded, load_config
from voice_agent.errors import UsageError
from voice_agent.explain import dotted_names

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_other_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("VOICE_AGENT_CONFIG", raising=False)
    monkeypatch.delenv("VOICE_AGENT__HISTORY__ENABLED", raising=False)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.toml"
    path.write_text(text)
    return path


def origin(loaded: Loaded, name: str) -> str:
    return next(o for n, _, o in loaded.rows() if n == name)


def value(loaded: Loaded, name: str) -> str:
    return next(v for n, v, _ in loaded.rows() if n == name)


def test_defaults() -> None:
    loaded = load_config()
    assert loaded.config.server.host == "127.0.0.1"
    assert loaded.config.privacy.content is False
    assert loaded.config.recording.folder is None
    assert {o for _, _, o in loaded.rows()} == {"default"}
    assert [n for n, _, _ in loaded.rows()] == dotted_names(Config)


def test_later_layers_win_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, '[server]\nport = 1\nmax_calls = 5\n[log]\nformat = "json"\n')
    monkeypatch.setenv("VOICE_AGENT__SERVER__PORT", "2")
    loaded = load_config(path, {"server.port": 3, "server.host": None})
    assert loaded.config.server.port == 3
    assert loaded.config.server.max_calls == 5
    assert origin(loaded, "server.port") == "flag"
    assert origin(loaded, "server.max_calls") == f"{path}:3"
    assert origin(loaded, "log.format") == f"{path}:5"
    assert origin(loaded, "server.host") == "default"
    assert origin(load_config(path), "server.port") == "VOICE_AGENT__SERVER__PORT"
    assert load_config(path).config.server.port == 2


def test_a_recording_is_content() -> None:
    flags = {"recording.folder": "calls"}
    with pytest.raises(UsageError, match=r"privacy\.content"):
        load_config(None, flags)
    assert load_config(None, {**flags, "privacy.content": True}).config.recording.folder


def test_what_tools_may_reach_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICE_AGENT__TOOLS__PRIVATE_HOSTS", "crm.internal, 10.1.0.0/16")
    assert load_config().config.tools.private_hosts == ("crm.internal", "10.1.0.0/16")
    with pytest.raises(UsageError, match=r"VA432.*tools\.private_hosts"):
        load_config(None, {"tools.private_hosts": ["10.1.0.0/99"]})


def test_the_file_is_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "voice-agent"
    home.mkdir(parents=True)
    (home / "config.toml").write_text("[server]\nport = 10\n")
    assert load_config().config.server.port == 10
    Path("voice-agent.toml").write_text("[server]\nport = 11\n")
    assert load_config().config.server.port == 11
    monkeypatch.setenv("VOICE_AGENT_CONFIG", str(write(tmp_path, "[server]\nport = 12\n")))
    assert load_config().config.server.port == 12


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[server]\nprot = 1\n", 2, "'server.port'"),
        ("\nport = 3\n", 2, "'server.port'"),
        ("[sever]\nport = 1\n", 2, "'server'"),
        ("[engine]\nkv_bytes = 1\n", 2, "kv_mb"),
        ("[models.source]\nx = 'y'\n", 2, "'models.sources'"),
    ],
)
def test_an_unknown_key_suggests_the_right_one(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_config(path)
    assert caught.value.code == "VA431"
    assert f"{path}:{line}: unknown key" in str(caught.value)
    assert says in str(caught.value)


def test_an_unknown_variable_suggests_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICE_AGENT__SERVER__MAXCALLS", "3")
    with pytest.raises(UsageError, match=r"VA431.*VOICE_AGENT__SERVER__MAXCALLS.*max_calls"):
        load_config()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nport = 70000\n", "2: server.port:"),
        ('[log]\nlevel = "LOUD"\n', "2: log.level:"),
        ("server = 3\n", "1: server:"),
    ],
)
def test_a_bad_value_names_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(write(tmp_path, text))
    assert caught.value.code == "VA432"
    assert says in str(caught.value)


def test_a_bad_flag_is_called_a_flag() -> None:
    with pytest.raises(UsageError, match=r"VA432: flag: profile"):
        load_config(None, {"profile": "tpu"})


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="VA430"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(UsageError, match=r"VA430.*line 1"):
        load_config(write(tmp_path, "x = = 1\n"))


def test_lists_and_tables_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICE_AGENT__SERVER__ALLOWED_HOSTS", "a.example, b.example:81")
    monkeypatch.setenv("VOICE_AGENT__MODELS__SOURCES", '{"piper-joe": "/voices/joe"}')
    loaded = load_config()
    assert loaded.config.server.allowed_hosts == ("a.example", "b.example:81")
    assert loaded.config.models.sources == {"piper-joe": "/voices/joe"}
    assert origin(loaded, "models.sources") == "VOICE_AGENT__MODELS__SOURCES"
    monkeypatch.setenv("VOICE_AGENT__MODELS__SOURCES", "not json")
    with pytest.raises(UsageError, match="VA432"):
        load_config()


def test_keys_are_never_shown(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, '[server]\napi_keys = ["very-secret-key-000"]\n'))
    assert loaded.config.server.api_keys == ("very-secret-key-000",)
    assert value(loaded, "server.api_keys") == "(1 set)"
    assert "very-secret" not in repr(loaded.config)


REMOTE = '[llm]\nbackend = "openai"\nbase_url = "http://far:8000/v1/"\nmodel = "m"\n'


def test_a_remote_model_and_its_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_config().config.llm.remotes == {}
    assert load_config().config.llm.needs_engine
    alone = load_config(write(tmp_path, REMOTE)).config.llm
    assert list(alone.remotes) == ["primary"]
    assert alone.base_url == "http://far:8000/v1"
    assert not alone.needs_engine
    behind = load_config(write(tmp_path, REMOTE + 'fallback = "embedded"\n')).config.llm
    assert (list(behind.remotes), behind.needs_engine) == (["primary"], True)
    text = REMOTE + 'fallback = "second"\n[llm.second]\nbase_url = "http://b/v1"\nmodel = "n"\n'
    monkeypatch.setenv("VOICE_AGENT__LLM__API_KEY", "sk-first-secret")
    monkeypatch.setenv("VOICE_AGENT__LLM__SECOND__API_KEY", "sk-second-secret")
    loaded = load_config(write(tmp_path, text))
    two = loaded.config.llm
    assert [r.model for r in two.remotes.values()] == ["m", "n"]
    assert [r.api_key for r in two.remotes.values()] == ["sk-first-secret", "sk-second-secret"]
    assert not two.needs_engine
    assert value(loaded, "llm.api_key") == value(loaded, "llm.second.api_key") == "(1 set)"
    assert "secret" not in repr(loaded.config) + repr(list(loaded.rows()))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[llm]\nbackend = "openai"\n', "needs base_url and model"),
        ('[llm]\nfallback = "embedded"\n', 'a fallback needs backend = "openai"'),
        (REMOTE + 'fallback = "second"\n', "needs second.base_url and second.model"),
        (REMOTE + 'fallback = "third"\n', "llm.fallback"),
        (REMOTE + "first_token_s = 0\n", "llm.first_token_s"),
        (REMOTE + "extra = {stream = false}\n", "stream cannot be set here"),
        ('[llm]\nbase_url = "far:8000"\n', "an address such as"),
        ('[llm]\nbase_url = "http://me:pw@far/v1"\n', "use api_key"),
        ('[llm]\nbase_url = "http://far/v1?key=pw"\n', "use api_key"),
    ],
)
def test_a_remote_model_that_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_config(path)
    assert caught.value.code == "VA432"
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "pw" not in str(caught.value)


def test_frozen() -> None:
    config = load_config().config
    with pytest.raises(ValidationError):
        config.profile = "gpu"
    with pytest.raises(ValidationError):
        config.server.port = 1


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "CONFIG.md").read_text("utf-8")
    missing = [name for name in dotted_names(Config) if f"`{name}`" not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("given", "kind"),
    [("true", "radix"), ("false", "none"), ('"block-hash"', "block-hash"), ('"none"', "none")],
)
def test_prefix_caching_is_a_kind_or_yes_or_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, kind: str
) -> None:
    path = write(tmp_path, f"[engine]\nenable_prefix_caching = {given}\n")
    assert load_config(path).config.engine.enable_prefix_caching == kind
    monkeypatch.setenv("VOICE_AGENT__ENGINE__ENABLE_PREFIX_CACHING", given.strip('"'))
    assert load_config().config.engine.enable_prefix_caching == kind


@pytest.mark.parametrize(
    ("text", "mb"),
    [
        ("", 512),
        ("kv_mb = 64", 64),
        ("gpu_memory_utilization = 0.25", 4000),
        ("kv_mb = 64\ngpu_memory_utilization = 0.25", 64),
    ],
)
def test_the_kv_caches_memory_is_bytes_or_a_share(tmp_path: Path, text: str, mb: int) -> None:
    section = load_config(write(tmp_path, f"[engine]\n{text}\n")).config.engine
    assert section.kv_bytes(16_000) == mb << 20


def test_more_rows_than_tokens_in_a_step_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "[engine]\nmax_num_seqs = 64\nmax_num_batched_tokens = 32\n")
    with pytest.raises(UsageError, match="max_num_seqs must not exceed"):
        load_config(path)
