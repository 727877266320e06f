"""CTranslate2's matrix library: the installed package first, and a reason where there is none."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from voice_agent.errors import InternalError
from voice_agent.stt import cublas
from voice_agent.stt.whisper_model import FILES, WhisperModel

pytestmark = pytest.mark.unit


def test_the_installed_package_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia" / "cublas" / "lib" / cublas.NAME
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    tried: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: tried.append(name))
    assert cublas.load_cublas() == ""
    assert tried == [str(library)]


def test_without_the_library_a_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublas, "NAME", "libno-such-thing.so.12")
    assert cublas.PACKAGE in cublas.load_cublas()
    for name in FILES:
        (tmp_path / name).touch()
    with pytest.raises(InternalError, match=cublas.PACKAGE):
        WhisperModel(tmp_path, device="cuda")
