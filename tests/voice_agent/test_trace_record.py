"""One record of a turn: what it tells, and what it keeps to itself."""

from __future__ import annotations

import json

import pytest

from tests.support.fakes import Scene, say, silence
from voice_agent.events import TurnTraced
from voice_agent.trace_record import CONTENT, record_of

pytestmark = pytest.mark.unit

REPLY = "It is four. And there is very much more to say about that, if you wish."


@pytest.fixture(scope="module")
def scene() -> Scene:
    """A turn that is answered and interrupted, and the turn that did it."""
    scene = Scene(REPLY)
    scene.stack.models["fake"] = "fake-1b"
    return scene.play(
        silence(300), say("what is the time"), silence(3200), say("tell me more"), silence(4000)
    )


def test_a_record_is_json_without_content_unless_allowed(scene: Scene) -> None:
    for event in scene.of(TurnTraced):
        record = record_of(event.trace, content=False)
        text = json.dumps(record)
        assert json.loads(text) == record
        assert [record[name] for name in CONTENT] == ["", "", ""]
        for words in ("what is", "the time", "tell me", "four", "wish"):
            assert words not in text
        assert record_of(event.trace, content=True)["transcript"]


def test_it_tells_who_answered_with_which_prompt_and_what_was_heard(scene: Scene) -> None:
    first = record_of(scene.of(TurnTraced)[0].trace, content=True, unix_s=5000.0)
    assert (first["agent"], first["backend"], first["model"]) == ("test", "fake", "fake-1b")
    assert len(first["prompt_version"]) == 12
    assert first["interrupted"]
    assert 0 < first["heard_words"] < first["reply_words"] == len(REPLY.split())
    assert first["unheard_voice_ms"] > 0
    assert first["zero_unix_s"] == pytest.approx(5000.0 + scene.of(TurnTraced)[0].trace.zero_s)


def test_the_prompts_version_changes_with_the_instructions(scene: Scene) -> None:
    first = scene.stack.conversation("Be brief.")
    assert first.version == scene.stack.conversation("Be brief.").version
    assert (
        first.version == record_of(scene.of(TurnTraced)[0].trace, content=False)["prompt_version"]
    )
    assert first.version != scene.stack.conversation("Be very brief.").version


def test_decisions_have_their_reasons(scene: Scene) -> None:
    first, second = (record_of(e.trace, content=False) for e in scene.of(TurnTraced)[:2])
    (commit,) = [d for d in first["decisions"] if d["what"] == "commit"]
    why = commit["why"]
    assert why["silence_ms"] >= why["timeout_ms"] > 0
    assert 0 < why["p_complete"] < 1
    assert commit["at_ms"] == pytest.approx(first["marks"]["commit"], abs=0.11)
    (cut,) = [d for d in first["decisions"] if d["what"] == "interrupt"]
    assert (cut["turn"], cut["why"]["speech"]) == (1, "words")
    assert cut["what"] in [d["what"] for d in second["decisions"]]
    assert second["decisions"][0]["what"] == "listen"
