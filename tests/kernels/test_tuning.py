"""The table of tile sizes: files, overrides, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels import tuning

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
DEFAULT = {"BLOCK": 64, "num_warps": 4, "num_stages": 2}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tuning, "_HERE", tmp_path)
    for cached in (tuning._chosen, tuning._read, tuning._implementations):
        cached.cache_clear()
    yield tmp_path
    for cached in (tuning._chosen, tuning._read, tuning._implementations):
        cached.cache_clear()


def test_a_file_replaces_defaults_and_is_read_once(folder: Path) -> None:
    file = folder / "cpu.json"
    file.write_text(json.dumps({"op": {"wide": {"num_warps": 8}}}), "utf-8")
    assert tuning.launch("op", "wide", CPU, DEFAULT) == {**DEFAULT, "num_warps": 8}
    file.unlink()
    assert tuning.launch("op", "wide", CPU, DEFAULT)["num_warps"] == 8
    assert tuning.launch("op", "narrow", CPU, DEFAULT) == DEFAULT
    assert tuning.launch("other", "wide", CPU, DEFAULT) == DEFAULT


def test_a_file_names_implementations(folder: Path) -> None:
    assert tuning.implementation("op", CPU) is None
    tuning._implementations.cache_clear()
    text = json.dumps(
        {"implementations": {"op": "cuda", "other wide": "cuda"}, "op": {"wide": {"BLOCK": 16}}}
    )
    (folder / "cpu.json").write_text(text, "utf-8")
    assert tuning.implementation("op", CPU) == "cuda"
    assert tuning.implementation("op", CPU, "wide") is None
    assert tuning.implementation("other", CPU) is None
    assert tuning.implementation("other", CPU, "wide") == "cuda"
    assert tuning.launch("op", "wide", CPU, DEFAULT)["BLOCK"] == 16


@pytest.mark.parametrize("text", ["{", "[]", '{"implementations": {"op": 1}}'])
def test_broken_names_are_refused(folder: Path, text: str) -> None:
    (folder / "cpu.json").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"cpu\.json"):
        tuning.implementation("op", CPU)


def test_no_file_no_change() -> None:
    assert tuning.launch("op", "wide", CPU, DEFAULT) == DEFAULT


def test_overrides_nest_and_end() -> None:
    with tuning.using({"op": {"wide": {"BLOCK": 16, "num_warps": 1}}}):
        with tuning.using({"op": {"wide": {"BLOCK": 32}}}):
            got = tuning.launch("op", "wide", CPU, DEFAULT)
        assert got == {"BLOCK": 32, "num_warps": 1, "num_stages": 2}
        assert tuning.launch("op", "wide", CPU, DEFAULT)["BLOCK"] == 16
    assert tuning.launch("op", "wide", CPU, DEFAULT) == DEFAULT


@pytest.mark.parametrize("text", ["{", "[]", '{"op": {"wide": {"BLOCK": 1.5}}}', '{"op": 3}'])
def test_a_broken_file_is_named(folder: Path, text: str) -> None:
    (folder / "cpu.json").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"cpu\.json"):
        tuning.launch("op", "wide", CPU, DEFAULT)


def test_an_unknown_name_is_refused(folder: Path) -> None:
    (folder / "cpu.json").write_text('{"op": {"wide": {"BLOCKS": 8}}}', "utf-8")
    with pytest.raises(ValueError, match=r"cpu\.json: op wide has no BLOCKS"):
        tuning.launch("op", "wide", CPU, DEFAULT)


def test_committed_tables_are_well_formed() -> None:
    for path in Path(tuning.__file__).parent.glob("*.json"):
        tuning.read(path)
