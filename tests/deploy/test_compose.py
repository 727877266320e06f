"""docker-compose.yml: whole, bounded, watched, and shut without its keys."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from voice_agent.config import load_config

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SECRETS = {"VOICE_AGENT_KEY", "TURN_SECRET", "GRAFANA_PASSWORD"}
NEEDED = SECRETS | {"TURN_HOST", "SERVER_ADDRESS"}


def filled(text: str, values: dict[str, str]) -> str:
    """As Compose fills in `${NAME}`, `:-`, `:?` and `:+`, inner ones first; KeyError for a needed
    one that is empty."""
    pattern = re.compile(r"\$\{(\w+)(?:(:[-?+])([^${}]*))?\}")

    def one(match: re.Match[str]) -> str:
        name, kind, more = match.groups()
        value = values.get(name, "")
        if kind == ":?" and not value:
            raise KeyError(name)
        if kind == ":-":
            return value or more
        return (more if value else "") if kind == ":+" else value

    while pattern.search(text):
        text = pattern.sub(one, text)
    return text


def values() -> dict[str, str]:
    return dict.fromkeys(SECRETS, "s" * 20) | {
        "TURN_HOST": "t.example",
        "SERVER_ADDRESS": "10.0.0.9",
    }


def judged(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    return subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)


def test_it_is_what_composes_own_schema_allows(tmp_path: Path) -> None:
    whole = tmp_path / "docker-compose.yml"
    whole.write_text(filled(TEXT, values()), "utf-8")
    done = judged(whole)
    assert done.returncode == 0, done.stdout
    whole.write_text(TEXT.replace("stop_grace_period", "stop_grace"), "utf-8")
    assert "'stop_grace' was unexpected" in judged(whole).stdout


def test_the_parts_are_all_there() -> None:
    assert set(SERVICES) == {"server", "server-gpu", "coturn", "prometheus", "tempo", "grafana"}
    assert SERVICES["server"]["profiles"] == ["cpu"]
    assert SERVICES["server-gpu"]["profiles"] == ["gpu"]


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_nothing_starts_without_its_keys(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        filled(TEXT, values() | {name: ""})
    example = (ROOT / "docs/deploy/example.env").read_text("utf-8")
    assert re.search(rf"^{name}=$", example, re.MULTILINE), "the example lists it, empty"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_bounded_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert "memory" in service["deploy"]["resources"]["limits"]
    assert service["restart"] == "unless-stopped"
    assert service["cap_drop"] == ["ALL"]
    assert service["logging"]["options"]["max-size"]
    if name == "tempo":  # its image holds nothing that could ask: Prometheus does
        scraped = yaml.safe_load((ROOT / "docs/deploy/prometheus.yml").read_text("utf-8"))
        assert "tempo" in [job["job_name"] for job in scraped["scrape_configs"]]
    elif name.startswith("server"):
        assert "HEALTHCHECK" in (ROOT / "docs/deploy/Dockerfile").read_text("utf-8")
    else:
        assert service["healthcheck"]["test"][0] == "CMD"


def test_media_has_the_hosts_network_and_the_rest_this_machine_only() -> None:
    for name, service in SERVICES.items():
        if name.startswith("server") or name == "coturn":
            assert service["network_mode"] == "host"
            assert "ports" not in service
        else:
            assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name


@pytest.mark.parametrize("name", ["server", "server-gpu"])
def test_the_server_takes_its_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    given = yaml.safe_load(filled(TEXT, values() | {"ALLOWED_HOSTS": "a.example"}))
    for key, value in given["services"][name]["environment"].items():
        monkeypatch.setenv(key, "" if value is None else str(value))
    config = load_config().config
    assert config.server.api_keys == ("s" * 20,)
    assert config.server.allowed_hosts == ("host.docker.internal:8080", "a.example")
    (turn,) = config.rtc.ice_servers
    assert turn.urls == tuple(f"turn:t.example:3478?transport={t}" for t in ("udp", "tcp"))
    assert turn.secret == "s" * 20
    assert config.profile == ("gpu" if name == "server-gpu" else "auto")
    stop_s = int(given["services"][name]["stop_grace_period"].removesuffix("s"))
    assert stop_s >= config.server.drain_s + 10, "room for the last clean-up"


def test_the_turn_server_relays_to_this_server_only() -> None:
    text = filled(COMPOSE["configs"]["turnserver"]["content"], values())
    lines = text.split()
    assert "denied-peer-ip=0.0.0.0-255.255.255.255" in lines
    assert [line for line in lines if line.startswith("allowed-peer")] == [
        "allowed-peer-ip=10.0.0.9"
    ]
    mapped = filled(
        COMPOSE["configs"]["turnserver"]["content"], values() | {"PUBLIC_ADDRESS": "203.0.113.7"}
    )
    assert "external-ip=203.0.113.7/10.0.0.9" in mapped.split()


def test_every_mounted_file_exists() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source


def test_images_are_pinned_and_dashboards_are_where_grafana_looks() -> None:
    for name, service in SERVICES.items():
        assert re.search(r":[\w.]+$", service["image"]), name
        assert not service["image"].endswith(":latest"), name
    mounted = [v.split(":")[1] for v in SERVICES["grafana"]["volumes"]]
    provider = yaml.safe_load((ROOT / "docs/deploy/grafana/dashboards.yml").read_text("utf-8"))
    folder = provider["providers"][0]["options"]["path"]
    assert any(path.startswith(f"{folder}/") for path in mounted)
    sources = yaml.safe_load((ROOT / "docs/deploy/grafana/datasources.yml").read_text("utf-8"))
    known = {s["uid"] for s in sources["datasources"]}
    board = json.loads((ROOT / "docs/deploy/grafana/voice-agent.json").read_text("utf-8"))
    assert board["templating"]["list"][0]["current"]["value"] in known
