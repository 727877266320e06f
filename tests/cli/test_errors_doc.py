"""Every code in the source is explained, once, and none is explained that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PACKAGES = ("voice_agent", "engine", "gateway", "kernels", "loadtest")


def used() -> set[str]:
    found: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            found |= set(re.findall(r"\bVA\d{3}\b", path.read_text("utf-8")))
    return found


def documented() -> list[str]:
    text = (ROOT / "docs" / "ERRORS.md").read_text("utf-8")
    return re.findall(r"^\| (VA\d{3}) \|", text, re.MULTILINE)


def test_codes_are_documented_once_and_in_order() -> None:
    codes = documented()
    assert codes == sorted(set(codes))


def test_every_code_is_documented() -> None:
    assert sorted(used() - set(documented())) == []


def test_no_code_is_documented_that_is_never_used() -> None:
    assert sorted(set(documented()) - used()) == []
