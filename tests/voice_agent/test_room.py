"""Descriptors and memory: raised and checked at start, and calls refused before they run out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from voice_agent import room
from voice_agent.errors import CapacityError
from voice_agent.room import FILES_PER_CALL, RESERVE_FILES, RESERVE_MB, Lack, Room

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


def limited(soft: int, hard: int, script: str) -> str:
    """What a process with these limits prints."""
    limit = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    done = subprocess.run(
        [sys.executable, "-c", limit + script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.strip()


def test_the_soft_limit_is_raised_as_far_as_it_goes() -> None:
    script = (
        "from voice_agent.room import raise_limit\n"
        "print(raise_limit(700), *r.getrlimit(r.RLIMIT_NOFILE))"
    )
    assert limited(128, 900, script) == "900 900 900"


def test_a_hard_limit_that_is_too_low_is_named() -> None:
    script = (
        "from voice_agent.room import raise_limit\n"
        "try: raise_limit(700)\n"
        "except Exception as e: print(e)"
    )
    told = limited(128, 600, script)
    assert told.startswith("VA204: this process may open 600 files and needs 700")
    assert "LimitNOFILE=700" in told


def test_more_calls_need_more_files() -> None:
    assert room.files_needed(11, 512) - room.files_needed(1, 512) == 10 * FILES_PER_CALL


def test_calls_are_refused_before_files_run_out() -> None:
    last = 1000 - RESERVE_FILES - FILES_PER_CALL
    assert Room(1000, lambda: last, lambda: RESERVE_MB).lacks() is None
    assert Room(1000, lambda: last + 1, lambda: RESERVE_MB).lacks() is Lack.FILES


def test_calls_are_refused_before_memory_runs_out() -> None:
    assert Room(1000, lambda: 0, lambda: RESERVE_MB - 1).lacks() is Lack.MEMORY


def test_a_server_that_could_take_no_call_does_not_start() -> None:
    Room(1000, lambda: 0, lambda: RESERVE_MB).check_start()
    with pytest.raises(CapacityError, match="with the models loaded 12 MB") as error:
        Room(1000, lambda: 0, lambda: 12).check_start()
    assert error.value.code == "VA205"


def test_open_files_are_counted() -> None:
    before = room.open_files()
    with open(__file__, "rb"):
        assert room.open_files() == before + 1


def test_a_control_groups_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CGROUP", tmp_path)
    machine = room.free_memory_mb()
    (tmp_path / "memory.max").write_text(f"{100 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{70 << 20}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {20 << 20}\nfile 7\n")
    assert room.free_memory_mb() == 50
    (tmp_path / "memory.max").write_text("max\n")
    assert room.free_memory_mb() == pytest.approx(machine, rel=0.5)
