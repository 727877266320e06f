"""Reads tool calls out of a reply while it streams.

Arguments are handed on as they come and are never parsed, so a reply may stop inside them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum

from engine.text.tools import CLOSE, OPEN

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


@dataclass(frozen=True, slots=True)
class Content:
    """Text outside of calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, JSON text."""

    index: int
    text: str


Event = Content | CallBegins | CallArguments


class _At(Enum):
    TEXT = "text"
    HEAD = "head"
    ARGUMENTS = "arguments"
    TAIL = "tail"


class ToolCallReader:
    """One reply. What does not have the form of a call is content, tags included."""

    def __init__(self) -> None:
        self.n_calls = 0
        self._at = _At.TEXT
        self._held = ""
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str) -> list[Event]:
        """What this text makes certain. White space is held until something follows it."""
        self._held += text
        events: list[Event] = []
        step = {
            _At.TEXT: self._text, _At.HEAD: self._head,
            _At.ARGUMENTS: self._arguments, _At.TAIL: self._tail,
        }  # fmt: skip
        while step[self._at](events):
            pass
        return events

    def finish(self) -> list[Event]:
        """What was held, now that nothing follows; arguments cut short stay so."""
        held, self._held = self._held, ""
        if self._at is _At.HEAD:
            return [Content(OPEN + held)]
        if self._at is _At.TEXT and held and (held.strip() or not self.n_calls):
            return [Content(held)]
        return []

    def _text(self, events: list[Event]) -> bool:
        before, tag, after = self._held.partition(OPEN)
        if tag:
            if before.strip():
                events.append(Content(before.rstrip()))
            self._at, self._held = _At.HEAD, after
            return True
        keep = next((n for n in range(len(OPEN) - 1, 0, -1) if before.endswith(OPEN[:n])), 0)
        sure = before[: len(before) - keep].rstrip()
        if sure:
            events.append(Content(sure))
            self._held = before[len(sure) :]
        return False

    def _head(self, events: list[Event]) -> bool:
        match = _HEAD.match(self._held)
        if match is not None:
            self._begin(events, json.loads(match[1], strict=False))
            self._at, self._held = _At.ARGUMENTS, self._held[match.end() :]
            return True
        body, tag, after = self._held.partition(CLOSE)
        if not tag:
            return False
        self._at, self._held = _At.TEXT, after
        self._whole(body, events)
        return True

    def _whole(self, body: str, events: list[Event]) -> None:
        """A call in another order, or none at all."""
        try:
            call = json.loads(body)
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            name = arguments = None
        if not isinstance(name, str) or not isinstance(arguments, dict | str):
            events.append(Content(OPEN + body + CLOSE))
            return
        index = self._begin(events, name)
        as_text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        events.append(CallArguments(index, as_text))

    def _begin(self, events: list[Event], name: str) -> int:
        events.append(CallBegins(self.n_calls, name))
        self.n_calls += 1
        self._depth = 0
        self._in_string = self._escaped = False
        return self.n_calls - 1

    def _arguments(self, events: list[Event]) -> bool:
        """Hands on everything up to the brace that closes the arguments."""
        end = 0
        for end, char in enumerate(self._held, 1):  # noqa: B007
            self._note(char)
            if not self._depth:
                self._at = _At.TAIL
                break
        if end:
            events.append(CallArguments(self.n_calls - 1, self._held[:end]))
            self._held = self._held[end:]
        return self._at is _At.TAIL

    def _note(self, char: str) -> None:
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        else:
            self._depth += (char in "{[") - (char in "}]")

    def _tail(self, events: list[Event]) -> bool:
        _, tag, after = self._held.partition(CLOSE)
        if not tag:
            self._held = self._held[-len(CLOSE) :]
            return False
        self._at, self._held = _At.TEXT, after
        return True
