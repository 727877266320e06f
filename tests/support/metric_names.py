"""The names of metrics that docs/METRICS.md promises, and those that a query uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "METRICS.md"
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


@dataclass(frozen=True)
class Promised:
    """always: of every server; else only where its section says."""

    kind: str
    labels: tuple[str, ...]
    always: bool


def promised() -> dict[str, Promised]:
    """Name, as samples have it -> what the page says of it."""
    found: dict[str, Promised] = {}
    always = True
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            always = not line.startswith("## Only")
        row = re.match(r"\| `([a-z0-9_]+)` \| (counter|gauge|histogram) \| ([a-z_`, ]*) \|", line)
        if row:
            name, kind, labels = row.groups()
            assert name not in found, f"{name} is there twice"
            found[name] = Promised(kind, tuple(re.findall(r"`(\w+)`", labels)), always)
    return found


def exposed(text: str) -> dict[str, str]:
    """Name -> kind of every family in an answer of /metrics."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def samples() -> set[str]:
    """Every name that a query may use."""
    return {name + part for name, p in promised().items() for part in PARTS[p.kind]}


def used(query: str) -> set[str]:
    """The names of a PromQL expression that can only be metrics of ours or of the process."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}', "", query)
    return set(re.findall(r"\b(?:voice_agent_|process_)[a-z0-9_]+", bare))


def labels_used(query: str) -> dict[str, set[str]]:
    """Metric -> labels that the expression selects by."""
    found: dict[str, set[str]] = {}
    for name, inner in re.findall(r"\b((?:voice_agent_|process_)[a-z0-9_]+)\{([^}]*)\}", query):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inner))
    return found
