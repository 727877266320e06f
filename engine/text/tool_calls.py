"""Reads tool calls out of a reply while it streams.

Arguments are handed on as they come and are never parsed, so a reply may stop inside them. Small
models forget the tags: a reply that begins with a call of a tool by name is read as one too, in a
code fence or not.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

import regex

from engine.text.tools import CLOSE, OPEN

_CALL = r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
_HEAD = regex.compile(_CALL)
_BARE_HEAD = regex.compile(rf"\s*(?:```\w*\s*){{0,2}}{_CALL}")
_BARE_TAIL = regex.compile(r"\s*\}")
_FENCES = regex.compile(r"[\s`]*(?:json)?\s*")


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
    START = "start"
    TEXT = "text"
    HEAD = "head"
    ARGUMENTS = "arguments"
    TAIL = "tail"
    BARE_TAIL = "bare tail"


class ToolCallReader:
    """One reply. What does not have the form of a call is content, tags included.

    names: tools whose calls are read without tags too; none by default.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self.n_calls = 0
        self._names = names
        self._at = _At.START if names else _At.TEXT
        self._bare = False
        self._held = ""
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str) -> list[Event]:
        """What this text makes certain. White space is held until something follows it."""
        self._held += text
        events: list[Event] = []
        step = {
            _At.START: self._start, _At.TEXT: self._text, _At.HEAD: self._head,
            _At.ARGUMENTS: self._arguments, _At.TAIL: self._tail, _At.BARE_TAIL: self._bare_tail,
        }  # fmt: skip
        while step[self._at](events):
            pass
        return events

    def finish(self) -> list[Event]:
        """What was held, now that nothing follows; arguments cut short stay so."""
        held, self._held = self._held, ""
        if self._at is _At.HEAD:
            return [Content(OPEN + held)]
        if self._at is _At.START and self.n_calls and _FENCES.fullmatch(held):
            return []
        if self._at in (_At.START, _At.TEXT) and held and (held.strip() or not self.n_calls):
            return [Content(held)]
        return []

    def _start(self, events: list[Event]) -> bool:
        """Whether a call without tags stands here; held until that is certain."""
        match = _BARE_HEAD.match(self._held, partial=True)
        if match is not None and match.partial:
            return False
        name = "" if match is None else str(json.loads(match[1], strict=False))
        if match is None or name not in self._names:
            self._at = _At.TEXT
            return True
        self._begin(events, name)
        self._at, self._bare, self._held = _At.ARGUMENTS, True, self._held[match.end() :]
        return True

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
            self._at, self._bare, self._held = _At.ARGUMENTS, False, self._held[match.end() :]
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
                self._at = _At.BARE_TAIL if self._bare else _At.TAIL
                break
        if end:
            events.append(CallArguments(self.n_calls - 1, self._held[:end]))
            self._held = self._held[end:]
        return self._at is not _At.ARGUMENTS

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

    def _bare_tail(self, events: list[Event]) -> bool:
        match = _BARE_TAIL.match(self._held, partial=True)
        if match is not None and match.partial:
            return False
        self._at = _At.START
        self._held = self._held[match.end() :] if match is not None else self._held
        return True
