"""What the page says on its data channel."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.rtc_side import MAX_TEXT, PageSide
from tests.support.fake_call import FakeCall, FakeStack
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit


class Bench:
    def __init__(self) -> None:
        gateway: Any = SimpleNamespace(stack=FakeStack(), observe=lambda event: None)
        self.told: list[dict[str, Any]] = []
        self.left = 0
        self.side = PageSide(gateway, None)
        call = self.side.begin(lambda text: self.told.append(json.loads(text)), self.leave)
        assert isinstance(call, FakeCall)
        self.call = call

    def leave(self) -> None:
        self.left += 1

    def say(self, **message: Any) -> None:
        self.side.receive(json.dumps(message))


def test_muting_and_unmuting() -> None:
    bench = Bench()
    for on in (True, False):
        bench.say(type="mute", on=on)
    assert bench.call.mutes == [True, False]


async def test_what_is_typed_interrupts_and_is_answered() -> None:
    bench = Bench()
    bench.call.client.respond()
    bench.say(type="text", text="  When do you open?  ")
    assert bench.call.messages == [("user", "When do you open?")]
    assert [d["status"] for d in bench.told if d["type"] == "done"] == ["cancelled"]
    assert [d["reply"] for d in bench.told if d["type"] == "reply"] == [0, 1]


async def test_a_long_text_is_cut() -> None:
    bench = Bench()
    bench.say(type="text", text="a" * 5000)
    assert bench.call.messages == [("user", "a" * MAX_TEXT)]


def test_a_text_that_cannot_be_taken_is_explained() -> None:
    bench = Bench()

    def full(*args: Any, **kwargs: Any) -> None:
        raise UsageError("shorten it", code="VA109")

    bench.call.client.add_message = full  # type: ignore[method-assign]
    bench.say(type="text", text="hello")
    (fault,) = [d for d in bench.told if d["type"] == "error"]
    assert (fault["code"], fault["message"]) == ("VA109", "shorten it")


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "7", "null", '{"type": 3}', '{"type": "mute"}', '{"type": "mute", "on": 1}',
        '{"type": "text"}', '{"type": "text", "text": 5}', '{"type": "text", "text": "  "}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_nonsense_does_nothing(text: str) -> None:
    bench = Bench()
    bench.side.receive(text)
    assert (bench.call.mutes, bench.call.messages, bench.told, bench.left) == ([], [], [], 0)


def test_hanging_up() -> None:
    bench = Bench()
    bench.say(type="hangup")
    assert bench.left == 1
