"""The dashboard and the alert rules ask for nothing that the server does not have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.metric_names import ROOT, labels_used, promised, samples, used

pytestmark = pytest.mark.unit

DEPLOY = ROOT / "docs" / "deploy"
RUNBOOK = ROOT / "docs" / "OPERATIONS.md"
PROMTOOL = shutil.which("promtool")


def rules() -> list[dict[str, Any]]:
    data = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))
    return [rule for group in data["groups"] for rule in group["rules"]]


def panels() -> Iterator[dict[str, Any]]:
    data = json.loads((DEPLOY / "grafana" / "voice-agent.json").read_text("utf-8"))
    yield from (panel for panel in data["panels"] if panel["type"] != "row")


def queries() -> list[tuple[str, str]]:
    """(where, expression)"""
    found = [(rule["alert"], rule["expr"]) for rule in rules()]
    return found + [(p["title"], target["expr"]) for p in panels() for target in p["targets"]]


def test_every_metric_exists() -> None:
    missing = {where: left for where, query in queries() if (left := used(query) - samples())}
    assert missing == {}
    assert len({name for _, query in queries() for name in used(query)}) > 30


def test_every_label_exists() -> None:
    known = promised()
    scraped = {"instance", "job", "le"}
    for where, query in queries():
        for name, labels in labels_used(query).items():
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            promise = known.get(name) or known[base]
            assert labels <= set(promise.labels) | scraped, (where, name)


def test_a_wrong_name_would_be_found() -> None:
    assert used("rate(voice_agent_nonsense_total[5m]) > 0") - samples()
    assert labels_used('voice_agent_turns_total{colour="red"}') == {
        "voice_agent_turns_total": {"colour"}
    }


def test_every_alert_has_its_runbook() -> None:
    text = RUNBOOK.read_text("utf-8")
    named = re.findall(r"^### (VoiceAgent\w+)$", text, re.MULTILINE)
    alerts = [rule["alert"] for rule in rules()]
    assert sorted(named) == sorted(set(alerts))
    assert len(alerts) == len(set(alerts))
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/OPERATIONS.md#{rule['alert'].lower()}"


def test_panels_stand_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["targets"], panel["title"]


@pytest.mark.skipif(PROMTOOL is None, reason="NOT RUN: needs promtool")
def test_promtool_takes_the_rules() -> None:
    assert PROMTOOL is not None
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(
            [PROMTOOL, *command], cwd=DEPLOY, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
