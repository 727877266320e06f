"""The history: token ids that only grow, cut where the ear stopped hearing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes import FakeChat, FakeTokenizer
from voice_agent.context import Conversation, Role, ToolUse

pytestmark = pytest.mark.unit


class Pairs(FakeTokenizer):
    """Two characters a token, so that a cut may fall inside one."""

    def __init__(self) -> None:
        self._pairs: list[str] = []

    def encode(self, text: str) -> list[int]:
        out = []
        for i in range(0, len(text), 2):
            self._pairs.append(text[i : i + 2])
            out.append(len(self._pairs) - 1)
        return out

    def decode(self, ids: object) -> str:
        return "".join(self._pairs[i] for i in ids)  # type: ignore[attr-defined]


def conversation(max_tokens: int = 10_000) -> Conversation:
    return Conversation(FakeChat(), FakeTokenizer(), "Be brief.", max_tokens)


def test_prompts_only_grow() -> None:
    c = conversation()
    c.add_user("hello")
    before = c.prompt()
    c.add_assistant([ord(x) for x in "hi there"], "hi there", 8)
    c.add_user("more")
    after = c.prompt()
    assert after.ids[: len(before.ids)] == before.ids
    assert after.messages[: len(before.messages)] == before.messages


def test_early_prompt_equals_the_prompt_after_commit() -> None:
    c = conversation()
    early = c.prompt("hello")
    c.add_user("hello")
    assert c.prompt() == early


def test_the_opening_is_the_beginning_of_the_prompt_with_more_words() -> None:
    c = conversation()
    c.add_user("hello")
    c.add_assistant([ord(x) for x in "hi"], "hi", 2)
    for words in ("", "tell me"):
        opening = c.opening(words)
        assert c.prompt("tell me more").ids[: len(opening)] == opening
    assert FakeTokenizer().decode(c.opening("tell me")).endswith("hitell me")


def test_nothing_heard_is_no_message() -> None:
    c = conversation()
    c.add_user("hello")
    assert c.add_assistant([ord(x) for x in "hi"], "hi", 0) == ""
    assert [m.role for m in c.messages] == [Role.SYSTEM, Role.USER]


@given(st.text("abc xyz", min_size=1, max_size=40), st.integers(0, 60))
def test_a_cut_falls_on_a_token_at_or_before_the_heard_character(text: str, heard: int) -> None:
    tokenizer = Pairs()
    ids = tokenizer.encode(text)
    c = Conversation(FakeChat(), tokenizer, "x", 1000)
    kept, kept_text = c.cut(ids, text, heard)
    assert text.startswith(kept_text)
    assert kept == ids[: len(kept)]
    assert tokenizer.decode(kept) == kept_text
    assert len(kept_text) <= max(heard, 0) or heard >= len(text)
    assert min(heard, len(text)) - len(kept_text) <= 1, "no more is lost than one token"


def test_messages_say_what_the_ids_say() -> None:
    c = conversation()
    c.add_user("hello")
    c.add_assistant([ord(x) for x in "hi there"], "hi there", 2)
    prompt = c.prompt("more")
    assert prompt.messages == (
        (Role.SYSTEM, "Be brief."), (Role.USER, "hello"), (Role.ASSISTANT, "hi"),
        (Role.USER, "more"),
    )  # fmt: skip
    assert FakeTokenizer().decode(prompt.ids) == "".join(text for _, text in prompt.messages)


@given(st.text("abc xyz", min_size=1, max_size=40), st.integers(0, 60))
def test_a_reply_from_elsewhere_is_cut_at_the_heard_character(text: str, heard: int) -> None:
    c = conversation()
    kept = c.add_assistant([], text, heard)
    assert kept == (text[:heard] if text[:heard].strip() else "")
    if kept:
        assert c.messages[-1].text == kept
        assert FakeTokenizer().decode(c.messages[-1].ids) == kept


def test_reopen_takes_back_only_a_last_user_message() -> None:
    c = conversation()
    assert c.reopen_user() is None
    c.add_user("hello")
    assert c.reopen_user() == "hello"
    c.add_user("hello")
    c.add_assistant([104, 105], "hi", 2)
    assert c.reopen_user() is None


def test_truncate_cuts_the_last_reply_further() -> None:
    c = conversation()
    c.add_user("hello")
    c.add_assistant([ord(x) for x in "one two three"], "one two three", 13)
    said = c.truncate(c.messages[-1], 7)
    assert said is c.messages[-1]
    assert (said.text, said.interrupted) == ("one two", True)
    assert c.truncate(said, 100) is said
    assert c.truncate(said, 0) is None
    assert c.messages[-1].role is Role.USER


def test_truncate_reaches_a_reply_behind_the_callers_next_words() -> None:
    c = conversation()
    c.add_user("hello")
    c.add_assistant([ord(x) for x in "one two"], "one two", 7)
    first = c.messages[-1]
    c.add_user("more")
    c.add_assistant([ord(x) for x in "three four"], "three four", 10, interrupted=True)
    said = c.messages[-1]
    c.add_user("stop")
    assert said.interrupted
    assert not first.interrupted
    left = c.truncate(said, 5)
    assert [m.text for m in c.messages[1:]] == ["hello", "one two", "more", "three", "stop"]
    assert left is c.messages[4]
    assert FakeTokenizer().decode(c.prefix().ids) == "Be brief.helloone twomorethreestop"
    assert c.truncate(said, 0) is said, "what it was is no longer there"
    assert len(c.messages) == 6


def test_room_is_made_by_dropping_the_oldest_exchanges() -> None:
    c = conversation(max_tokens=400)
    for i in range(20):
        c.add_user(f"question number {i}")
        c.add_assistant([ord(x) for x in "answer"], "answer", 6)
        changed = c.make_room()
        assert c.n_tokens <= 0.7 * 400 or len(c.messages) == 3
        if changed:
            assert c.n_tokens <= 0.5 * 400
    assert c.messages[0].role is Role.SYSTEM
    assert c.messages[1].role is Role.USER, "a history starts with the caller"
    assert c.messages[-1].text == "answer"
    assert c.dropped > 0


def test_calls_join_what_was_heard_of_the_reply_that_made_them() -> None:
    c = Conversation(FakeChat(), FakeTokenizer(), "s", 1000, [{"function": {"name": "look"}}])
    c.add_user("hi")
    c.add_assistant([], "One moment.", 11)
    said = c.messages[-1]
    use = ToolUse("1", "look", "{}", "sunny")
    c.add_tools([use], said=said)
    assert [(m.role, m.text) for m in c.messages[2:]] == [
        (Role.ASSISTANT, "One moment."), (Role.TOOL, "sunny"),
    ]  # fmt: skip
    prompt = c.prompt("and?")
    assert prompt.uses == ((2, (use,)),)
    assert FakeTokenizer().decode(prompt.ids).count("sunny") == 1


def test_calls_do_not_join_words_of_another_reply() -> None:
    c = Conversation(FakeChat(), FakeTokenizer(), "s", 1000)
    c.add_assistant([], "Hello.", 6)
    greeting = c.messages[-1]
    c.add_tools([ToolUse("1", "look", "{}", "sunny")], call_ids=[1, 2])
    assert c.messages[1] is greeting
    assert [m.role for m in c.messages[2:]] == [Role.ASSISTANT, Role.TOOL]


def test_calls_leave_a_full_history_together_with_their_results() -> None:
    c = Conversation(FakeChat(), FakeTokenizer(), "s", 400)
    for n in range(12):
        c.add_user(f"question {n} about something")
        c.add_tools([ToolUse(str(n), "look", "{}", "a result that is long")])
        c.add_assistant([], "answer", 6)
        c.make_room()
        for i, message in enumerate(c.messages):
            assert (message.role is Role.TOOL) == bool(c.messages[i - 1].uses)
    assert c.dropped > 0
