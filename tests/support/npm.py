"""Packages of npm beside the scripts that use them."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

OPTIONS = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund")


def node_with(folder: Path, *packages: str) -> str:
    """Path of Node, with what folder/package.json names installed; skips where that can't be."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("NOT RUN: needs node")
    with (Path(tempfile.gettempdir()) / "voice-agent-npm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run beside each other install once
        if not all((folder / "node_modules" / name).is_dir() for name in packages):
            install = subprocess.run(
                [npm, "install", *OPTIONS],
                cwd=folder, capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            if install.returncode:
                pytest.skip(f"NOT RUN: needs node (npm: {install.stderr.strip()[-200:]})")
    return node
