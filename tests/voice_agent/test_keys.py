"""The key file: no key in it, read again when it changes, whole whatever happens."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from voice_agent.errors import UsageError
from voice_agent.keys import KeyFile, digest

pytestmark = pytest.mark.unit


def test_a_key_is_shown_once_and_its_hash_is_kept(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "deep" / "keys.json", now=lambda: 1000.0)
    record, key = file.add("reception", ("call", "api", "call"), agent="front", days=2)
    text = file.path.read_text()
    assert key not in text
    assert key.rpartition("_")[2] not in text
    assert digest(key) in text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert (record.scopes, record.agent, record.expires) == (("api", "call"), "front", 173_800.0)
    assert record.good(173_799.0)
    assert not record.good(173_800.0)
    assert len(key) > 43
    assert file.add("reception")[1] != key


def test_another_process_sees_changes(tmp_path: Path) -> None:
    ours, theirs = KeyFile(tmp_path / "keys.json"), KeyFile(tmp_path / "keys.json")
    assert ours.records() == ()
    record, _ = theirs.add("a")
    assert ours.records() == (record,)
    theirs.revoke(record.id)
    assert ours.records()[0].revoked
    ours.path.unlink()
    assert theirs.records() == ()


def test_writers_do_not_lose_each_others_keys(tmp_path: Path) -> None:
    def add(n: int) -> None:
        for k in range(5):
            KeyFile(tmp_path / "keys.json").add(f"{n}-{k}")

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(KeyFile(tmp_path / "keys.json").records()) == 20


def test_what_cannot_be(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    file.add("twin")
    file.add("twin")
    problems = [
        lambda: file.add("x", ("root",)),
        lambda: file.add("x", ()),
        lambda: file.revoke("nobody"),
        lambda: file.revoke("twin"),
    ]
    for problem in problems:
        with pytest.raises(UsageError) as caught:
            problem()
        assert caught.value.code == "VA457"
    file.path.write_text('[{"id": "x"}]')
    with pytest.raises(UsageError, match="something else"):
        file.records()
    with pytest.raises(UsageError, match="cannot be used"):
        KeyFile(tmp_path).records()
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match="cannot be"):
        KeyFile(blocked / "keys.json").add("x")
