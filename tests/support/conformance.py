"""Which client did what against this server: collected by tests, kept in docs/CONFORMANCE.md."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

WRITES = os.environ.get("VOICE_AGENT_WRITE_CONFORMANCE") == "1"
DOC = Path(__file__).parents[2] / "docs" / "CONFORMANCE.md"
PYTHON, NODE, BROWSER, NPM = (
    "Python `openai`, WebSocket",
    "`@openai/agents-realtime`, WebSocket",
    "`@openai/agents-realtime`, WebRTC in Chromium",
    "npm `openai`, wss",
)
CLIENTS = (PYTHON, NODE, BROWSER, NPM)
HEAD = """# Conformance

What the official clients, unmodified, did against `voice-agent up` with the small models
(SmolLM2-135M, Whisper tiny.en, Piper). `VOICE_AGENT_WRITE_CONFORMANCE=1 make test
ARGS=tests/e2e/test_realtime_clients.py` writes this page, and the same tests fail when it is no
longer true. An empty cell was not tried.

"""


@dataclass
class Conformance:
    """rows: feature -> client -> passed. What is not tried again stays as the page has it."""

    rows: dict[str, dict[str, bool]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def feature(self, client: str, name: str) -> Iterator[None]:
        """What is asserted inside is what the cell says; the page must say so too."""
        cells = self.rows.setdefault(name, {})
        cells[client] = False
        yield
        cells[client] = True
        if not WRITES:
            assert written().get(name, {}).get(client), f"docs/CONFORMANCE.md lacks: {name}"

    def page(self) -> str:
        rows, versions = written(), written_versions()
        for name, cells in self.rows.items():
            rows.setdefault(name, {}).update(cells)
        versions |= self.versions
        lines = [HEAD]
        lines += [f"- {client}: {versions.get(client, '')}\n" for client in CLIENTS]
        lines.append(f"\n| feature | {' | '.join(CLIENTS)} |\n")
        lines.append(f"|---|{'---|' * len(CLIENTS)}\n")
        for name, cells in rows.items():
            words = [{True: "pass", False: "FAIL", None: ""}[cells.get(c)] for c in CLIENTS]
            lines.append(f"| {name} | {' | '.join(words)} |\n")
        return "".join(lines)


def written() -> dict[str, dict[str, bool]]:
    """The table as it stands in the documentation."""
    rows: dict[str, dict[str, bool]] = {}
    if not DOC.exists():
        return rows
    for line in DOC.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("feature", "---"):
            told = zip(CLIENTS, cells[1:], strict=True)
            rows[cells[0]] = {client: word == "pass" for client, word in told if word}
    return rows


def written_versions() -> dict[str, str]:
    lines = DOC.read_text("utf-8").splitlines() if DOC.exists() else []
    told = (line[2:].rpartition(": ") for line in lines if line.startswith("- "))
    return {client: version for client, _, version in told}
