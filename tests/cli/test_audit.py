"""`make audit` tells "there is a weakness" from "nobody could say"."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

AUDIT = Path(__file__).parents[2] / ".ci" / "audit"
FOUND = 'echo "some 1.0 CVE-1"; echo "Found 1 known vulnerability in 1 package" >&2; exit 1'
REFUSED = """echo "Traceback (most recent call last):" >&2
echo "  File x" >&2; echo "requests.exceptions.ConnectionError: no route" >&2; exit 1"""
UNKNOWN = 'echo "ERROR:pip_audit._cli:some: Dependency not found on PyPI" >&2; exit 1'


@pytest.mark.parametrize(
    ("tool", "status", "words"),
    [
        ("exit 0", 0, "no known weakness in 2 packages"),
        (FOUND, 1, "CVE-1"),
        (REFUSED, 2, "NOT AUDITED"),
        (REFUSED, 2, "no route"),
        (UNKNOWN, 2, "not found on PyPI"),
    ],
)
def test_the_status_says_which(tmp_path: Path, tool: str, status: int, words: str) -> None:
    fake = tmp_path / "pip-audit"
    fake.write_text(f"#!/bin/sh\n{tool}\n", "utf-8")
    fake.chmod(0o755)
    pins = tmp_path / "pins.txt"
    pins.write_text("# pins\nsome==1.0\nother==2.0\n", "utf-8")
    env = os.environ | {"PIP_AUDIT": str(fake)}
    run = subprocess.run([AUDIT, pins], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert words in run.stdout + run.stderr


def test_one_weak_file_of_two_is_enough(tmp_path: Path) -> None:
    fake = tmp_path / "pip-audit"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *weak.txt*) {FOUND};; esac\n', "utf-8")
    fake.chmod(0o755)
    files = [tmp_path / name for name in ("weak.txt", "good.txt")]
    for file in files:
        file.write_text("some==1.0\n", "utf-8")
    env = os.environ | {"PIP_AUDIT": str(fake)}
    run = subprocess.run([AUDIT, *files], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "weak.txt: Found 1 known vulnerability" in run.stdout + run.stderr
    assert "good.txt: no known weakness" in run.stdout + run.stderr
