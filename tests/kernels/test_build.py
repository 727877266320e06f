"""Where the native kernels can't be built or loaded, the reason is said and nothing else breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import build
from tests.support import native

pytestmark = pytest.mark.unit


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Nothing compiled yet, nothing remembered."""
    native.library()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
    return monkeypatch


def test_no_compiler(fresh: pytest.MonkeyPatch) -> None:
    fresh.delenv("CXX", raising=False)
    fresh.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(build.NativeUnavailable, match=r"install g\+\+"):
        build.library()


def test_a_compiler_that_fails(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("CXX", "false")
    with pytest.raises(build.NativeUnavailable, match="false failed"):
        build.library()


def test_what_was_compiled_is_no_program(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no program")
    fresh.setattr(build, "build", lambda level: broken)
    with pytest.raises(build.NativeUnavailable, match="can't be loaded"):
        build.library()


def test_sources_that_were_left_out(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.setattr(build, "_SOURCE", tmp_path / "none.cpp")
    with pytest.raises(build.NativeUnavailable, match="can't be loaded"):
        build.library()


def test_switched_off(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("VOICE_AGENT_NATIVE_KERNELS", "off")
    with pytest.raises(build.NativeUnavailable, match="switched off"):
        build.library()
