"""Real disks that are full, forbidden or torn away: no record blocks, all is well again after."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.history import call, ended, history, rows, turn, url, wait_until
from tests.support.history_child import N_BAD, outage
from voice_agent.history.store import Store

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def _as_anybody() -> None:
    """Root passes every file's mode: without these two rights it does not."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for right in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            libc.prctl(PR_CAPBSET_DROP, right, 0, 0, 0)


@pytest.fixture(scope="module")
def troubles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("disk")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.history_child", str(folder)],
        capture_output=True, text=True, cwd=ROOT, preexec_fn=_as_anybody, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def check(seen: dict[str, Any], reason: str) -> None:
    """The outage was counted, said once, survived by what fitted the queue, and is over."""
    down, after = seen["down"], seen["after"]
    assert (down["history_up"], after["history_up"]) == (0.0, 1.0)
    assert down["history_waiting"] == 8.0
    assert down["history_dropped_total"] == after["history_dropped_total"] == N_BAD - 8
    assert seen["turns"] == list(range(1, 10))
    assert seen["outcomes"] == ["caller_hung_up"]
    assert seen["intact"] == "ok"
    begun, over = seen["lines"]
    assert re.search(reason, begun)
    assert "xxxx" not in begun
    assert f"{N_BAD - 8} records were dropped" in over


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("no_larger_files", "disk I/O error"),
        ("no_right", "unable to open database file"),
        ("no_right_to_the_folder", "denied|disk I/O error|unable to open"),
    ],
)
def test_a_disk_that_refuses(troubles: dict[str, Any], trouble: str, reason: str) -> None:
    check(troubles[trouble], reason)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True)
    except FileNotFoundError:
        pytest.skip("NOT RUN: needs mount")
    if done.returncode:
        pytest.skip("NOT RUN: needs the right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    filler = small_disk / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    check(outage(small_disk / "h.db", fill, filler.unlink), "disk is full")


def test_a_disk_torn_away_and_put_back(small_disk: Path) -> None:
    """The folder is there, empty and unwritable, and then full of the old file again."""
    path = small_disk / "h.db"
    kept = history(Store(url(path)), size=8)
    kept.start()
    kept.put(call())
    kept.put(turn(1))
    wait_until(lambda: kept.written == 2)
    away = small_disk.with_name("away")
    away.mkdir()
    subprocess.run(["mount", "--move", str(small_disk), str(away)], check=True)
    small_disk.rmdir()
    small_disk.write_text("no folder")
    kept.put(turn(2))
    wait_until(lambda: kept.failures >= 2)
    small_disk.unlink()
    small_disk.mkdir()
    subprocess.run(["mount", "--move", str(away), str(small_disk)], check=True)
    wait_until(lambda: kept.written == 3)
    kept.put(ended())
    kept.close()
    assert rows(path, "SELECT n FROM turns") == [(1,), (2,)]
    assert rows(path, "SELECT outcome FROM calls") == [("caller_hung_up",)]


def test_a_file_deleted_locked_and_damaged_under_way(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "h.db"
    kept = history(Store(url(path), busy_s=0.01))
    kept.start()
    kept.put(turn(1))
    wait_until(lambda: kept.written == 1)
    path.unlink()
    kept.put(turn(2))
    wait_until(lambda: kept.written == 2)
    assert rows(path, "SELECT n FROM turns") == [(2,)]
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    kept.put(turn(3))
    wait_until(lambda: kept.failures >= 1)
    other.execute("ROLLBACK")
    other.close()
    wait_until(lambda: kept.written == 3)
    path.write_bytes(b"\0garbage" * 2000)
    kept.put(turn(4))
    wait_until(lambda: kept.written == 4)
    kept.close()
    (aside,) = tmp_path.glob("h.db.damaged-*")
    assert b"\0garbage" in aside.read_bytes()
    assert rows(path, "SELECT n FROM turns") == [(4,)]
