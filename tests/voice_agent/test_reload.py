"""What of a new configuration new calls get, and what waits for a restart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from voice_agent.config import Config
from voice_agent.explain import dotted_names
from voice_agent.reload import LIVE, merge, value_of

pytestmark = pytest.mark.unit

CONFIG_PAGE = Path(__file__).parents[2] / "docs" / "CONFIG.md"


def test_what_may_change_does_and_the_rest_is_named() -> None:
    old = Config(server={"port": 1, "max_calls": 2}, early={"voice": True})
    new = Config(server={"port": 9, "max_calls": 5}, early={"voice": False}, profile="cpu")
    merged, done = merge(old, new)
    assert done.taken == ("server.max_calls", "early.voice")
    assert done.waiting == ("profile", "server.port")
    assert (merged.server.max_calls, merged.early.voice) == (5, False)
    assert (merged.server.port, merged.profile) == (1, "auto")
    assert old.server.max_calls == 2, "the old one is left as it was"


def test_what_waits_is_named_again_at_the_next_reload() -> None:
    old, new = Config(), Config(server={"port": 9})
    merged, _ = merge(old, new)
    assert merge(merged, new)[1].waiting == ("server.port",)


def test_nothing_changed() -> None:
    merged, done = merge(Config(), Config())
    assert (done.taken, done.waiting) == ((), ())
    assert merged == Config()


def test_every_live_key_exists_and_is_documented() -> None:
    assert set(dotted_names(Config)) >= LIVE
    assert all(value_of(Config(), name) is not None for name in LIVE)
    text = CONFIG_PAGE.read_text("utf-8")
    section = text.split("## Reading it again")[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z_.]+)`", section.split("New calls get")[1])) == LIVE
