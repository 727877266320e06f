"""The history as token ids: append-only, byte-stable, and only what was heard.

Every message becomes a segment of token ids through the model's own chat template once, and is
never rendered again, so the ids of turn n are a prefix of turn n+1 and the engine's prefix cache
hits to the token. An interrupted reply is cut at the token boundary at or before the last heard
word.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from .types import ReplyId, TurnId


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


Key: TypeAlias = TurnId | ReplyId | str
"""What a message is known by: the caller's turn (its first revision), our reply, or a name that a
client gave it."""

Declaration = Mapping[str, Any]
"""A tool as OpenAI's requests tell it: `type` and `function` (name, description, parameters)."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that was called and what it gave. arguments: JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str
    result: str


class Chat(Protocol):
    """The parts of the engine's chat format used here; each returns ids of a *new segment* only."""

    def system(self, text: str, tools: Sequence[Declaration] = ()) -> list[int]: ...
    def user(self, text: str) -> list[int]: ...
    def user_open(self, text: str) -> list[int]:
        """A beginning of `user` for a message that goes on with more words."""
        ...

    def assistant_open(self) -> list[int]: ...
    def assistant_close(self) -> list[int]: ...
    def tool_calls(self, calls: Sequence[tuple[str, str]]) -> list[int]:
        """What an answer says that makes these calls, (name, arguments) each."""
        ...

    def tool_results(self, results: Sequence[str]) -> list[int]: ...


class Decoder(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ids: its segment, template tokens included. uses: the tools it calls, for one
    of ours; the message after it then has their results. interrupted: one of ours of which the
    caller heard only this. key: None for one that nobody outside needs to name."""

    role: Role
    text: str
    ids: tuple[int, ...]
    uses: tuple[ToolUse, ...] = ()
    interrupted: bool = False
    key: Key | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a reply is made from, in both forms: a remote model reads the messages (role, text), the
    engine in this process the token ids of the same history.

    uses: (index of a message of ours, the tools it calls); their results follow it as one message.
    may_call: whether the reply may call `tools`; they are told of either way, so that the prompt's
    beginning stays the same.
    """

    messages: tuple[tuple[Role, str], ...]
    ids: tuple[int, ...]
    tools: tuple[Declaration, ...] = ()
    uses: tuple[tuple[int, tuple[ToolUse, ...]], ...] = ()
    may_call: bool = True


class Conversation:
    """Owns one call's history. max_tokens: the model's context length less room for a reply."""

    def __init__(
        self,
        chat: Chat,
        tokenizer: Decoder,
        instructions: str,
        max_tokens: int,
        tools: Sequence[Declaration] = (),
    ) -> None:
        self._chat = chat
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._tools = tuple(tools)
        self.messages: list[Message] = [self._opening(instructions)]
        self.dropped = 0

    @property
    def version(self) -> str:
        """A digest of the instructions and tools as they stand: 12 hexadecimal digits."""
        told = json.dumps([self.messages[0].text, self._tools], sort_keys=True, default=str)
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    @property
    def n_tokens(self) -> int:
        return sum(len(m.ids) for m in self.messages)

    def set_opening(
        self, instructions: str | None = None, tools: Sequence[Declaration] | None = None
    ) -> None:
        """Replace the system message; everything behind it has to be computed anew."""
        if tools is not None:
            self._tools = tuple(tools)
        self.messages[0] = self._opening(
            self.messages[0].text if instructions is None else instructions
        )

    def other(
        self,
        instructions: str | None = None,
        tools: Sequence[Declaration] | None = None,
        *,
        empty: bool = False,
    ) -> Conversation:
        """This history, or none, behind another system message. None: told the same as here."""
        said = self.messages[0].text if instructions is None else instructions
        told = self._tools if tools is None else tools
        twin = Conversation(self._chat, self._tokenizer, said, self._max_tokens, told)
        if not empty:
            twin.messages += self.messages[1:]
        return twin

    def _opening(self, instructions: str) -> Message:
        ids = self._chat.system(instructions, self._tools) if self._tools else None
        return Message(Role.SYSTEM, instructions, tuple(ids or self._chat.system(instructions)))

    def prefix(self) -> Prompt:
        """What every prompt from here on starts with."""
        return Prompt(
            tuple((m.role, m.text) for m in self.messages),
            tuple(i for m in self.messages for i in m.ids),
            self._tools,
            tuple((n, m.uses) for n, m in enumerate(self.messages) if m.uses),
        )

    def prompt(self, user_text: str | None = None) -> Prompt:
        """To generate a reply from, with `user_text` as a message not yet committed."""
        so_far = self.prefix()
        messages, ids = so_far.messages, list(so_far.ids)
        if user_text is not None:
            messages = (*messages, (Role.USER, user_text))
            ids += self._chat.user(user_text)
        ids += self._chat.assistant_open()
        return replace(so_far, messages=messages, ids=tuple(ids))

    def unfinished(self, words: str) -> Prompt:
        """The history and a message of the caller's that may go on after `words`."""
        so_far = self.prefix()
        messages = (*so_far.messages, (Role.USER, words))
        return replace(so_far, messages=messages, ids=self.opening(words))

    def opening(self, words: str) -> tuple[int, ...]:
        """What the next prompt begins with if the caller's message begins with `words`."""
        return (*self.prefix().ids, *self._chat.user_open(words))

    def add(self, role: str, text: str, key: Key | None = None) -> None:
        """A message whose words are given: "user", "system" or "assistant"."""
        if role == Role.USER:
            self.add_user(text, key)
        elif role == Role.SYSTEM:
            self.add_system(text, key)
        else:
            self.add_assistant(self._tokenizer.encode(text), text, len(text), key=key)

    def add_user(self, text: str, key: Key | None = None) -> None:
        self.messages.append(Message(Role.USER, text, tuple(self._chat.user(text)), key=key))

    def add_system(self, text: str, key: Key | None = None) -> None:
        """A note from the operator or client in the middle of the dialogue."""
        self.messages.append(Message(Role.SYSTEM, text, tuple(self._chat.system(text)), key=key))

    def reopen_user(self) -> str | None:
        """Take back the last message if it is the caller's (nothing of ours was heard since)."""
        if len(self.messages) > 1 and self.messages[-1].role is Role.USER:
            return self.messages.pop().text
        return None

    def add_assistant(
        self,
        ids: Sequence[int],
        text: str,
        heard_chars: int,
        *,
        interrupted: bool = False,
        key: Key | None = None,
        before: int = 0,
    ) -> str:
        """Append what was heard of a reply; returns exactly the text that entered the history.

        ids: the reply's token ids as generated, none if another process made it; text: their
        decoding; heard_chars: end of the last heard word in `text`. Nothing heard means no message.
        before: how many messages came while the reply was being made or said; they follow it.
        """
        if not ids:
            text = text[: max(0, heard_chars)]
            ids = self._tokenizer.encode(text)
        kept, kept_text = self.cut(ids, text, heard_chars)
        if not kept_text.strip():
            return ""
        segment = (*self._chat.assistant_open(), *kept, *self._chat.assistant_close())
        said = Message(Role.ASSISTANT, kept_text, segment, interrupted=interrupted, key=key)
        self.messages.insert(len(self.messages) - before, said)
        return kept_text

    def count_after(self, message: Message) -> int:
        """How many messages follow it; 0 if it is no longer here."""
        for n, later in enumerate(reversed(self.messages)):
            if later is message:
                return n
        return 0

    def place(self, after: Key | None) -> None:
        """Move the last message behind the one known as `after` (None: to the beginning). It stays
        where it is if that one is not here."""
        message = self.messages.pop()
        at = 0 if after is None else self._find(after)
        at = len(self.messages) - 1 if at is None else at
        at += bool(self.messages[at].uses)  # calls and their results stay together
        self.messages.insert(at + 1, message)

    def remove(self, key: Key) -> bool:
        """Forget a message, or a tool's call (known by its id) with its result. False if it is not
        here: it never was, or has been dropped."""
        at = self._find(key)
        if at is None:
            return False
        message = self.messages[at]
        rest = tuple(use for use in message.uses if use.id != key)
        if message.uses and message.key == key:  # what was said goes, the calls stay
            self.messages[at : at + 2] = self._exchange("", rest)
        elif rest:
            self.messages[at : at + 2] = self._exchange(message.text, rest, message.key)
        else:
            del self.messages[at : at + (2 if message.uses else 1)]
            if message.uses and message.text:
                said = self._tokenizer.encode(message.text)
                segment = (*self._chat.assistant_open(), *said, *self._chat.assistant_close())
                self.messages.insert(at, replace(message, ids=segment, uses=()))
        return True

    def text_of(self, key: Key) -> str | None:
        """Of the message known by it."""
        at = self._find(key)
        return None if at is None else self.messages[at].text

    def _find(self, key: Key) -> int | None:
        known = range(1, len(self.messages))
        return next((i for i in known if self._known_as(self.messages[i], key)), None)

    @staticmethod
    def _known_as(message: Message, key: Key) -> bool:
        return message.key == key or any(use.id == key for use in message.uses)

    def _exchange(
        self, text: str, uses: tuple[ToolUse, ...], key: Key | None = None
    ) -> list[Message]:
        """A message of ours that says `text` and makes these calls, and their results."""
        body = self._tokenizer.encode(f"{text}\n") if text else []
        body += self._chat.tool_calls([(use.name, use.arguments) for use in uses])
        segment = (*self._chat.assistant_open(), *body, *self._chat.assistant_close())
        results = [use.result for use in uses]
        return [
            Message(Role.ASSISTANT, text, segment, uses, key=key),
            Message(Role.TOOL, "\n".join(results), tuple(self._chat.tool_results(results))),
        ]

    def add_tools(
        self,
        uses: Sequence[ToolUse],
        *,
        said: Message | None = None,
        call_ids: Sequence[int] = (),
    ) -> None:
        """Calls and their results, as a message of ours and one that answers it.

        said: what was heard of the reply that made the calls; they join it if nothing came after.
        call_ids: that reply as generated, if it was heard to its end.
        """
        heard, body, key = "", list[int](), None
        if said is not None and self.messages[-1] is said:
            self.messages.pop()
            heard, key = said.text, said.key
            body = [*self._body(said), *self._tokenizer.encode("\n")]
        if call_ids and (said is None or heard):
            body = list(call_ids)
        else:
            body += self._chat.tool_calls([(use.name, use.arguments) for use in uses])
        segment = (*self._chat.assistant_open(), *body, *self._chat.assistant_close())
        results = [use.result for use in uses]
        self.messages += [
            Message(Role.ASSISTANT, heard, segment, tuple(uses), key=key),
            Message(Role.TOOL, "\n".join(results), tuple(self._chat.tool_results(results))),
        ]

    def _body(self, message: Message) -> list[int]:
        """A message of ours without what the template puts around it."""
        n_open, n_close = len(self._chat.assistant_open()), len(self._chat.assistant_close())
        return list(message.ids[n_open : len(message.ids) - n_close])

    def cut(self, ids: Sequence[int], text: str, heard_chars: int) -> tuple[list[int], str]:
        """The longest prefix of ids whose text lies within text[:heard_chars]."""
        if heard_chars >= len(text):
            return list(ids), text
        lo, hi = 0, len(ids)
        while lo < hi:  # len(decode(prefix)) grows with the prefix
            mid = (lo + hi + 1) // 2
            if len(self._tokenizer.decode(ids[:mid])) <= heard_chars:
                lo = mid
            else:
                hi = mid - 1
        while lo and not text.startswith(self._tokenizer.decode(ids[:lo])):
            lo -= 1  # a prefix that ends in the middle of a character
        return list(ids[:lo]), self._tokenizer.decode(ids[:lo])

    def truncate(self, said: Message, heard_chars: int) -> Message | None:
        """A client says that less was heard of `said` than we counted: cut it further, even if the
        caller's next words are there already. Returns what is left of it; one that is no longer in
        the history, or has become part of a call of tools, stays as it is."""
        at = next((i for i, m in enumerate(self.messages) if m is said), None)
        if at is None or heard_chars >= len(said.text):
            return said
        after = self.messages[at + 1 :]
        del self.messages[at:]
        body = self._body(said)
        kept = self.add_assistant(body, said.text, heard_chars, interrupted=True, key=said.key)
        left = self.messages[-1] if kept else None
        self.messages += after
        return left

    def make_room(self) -> bool:
        """At 70 % full, drop the oldest exchanges down to 50 %. True if the prefix changed.

        The system message and the latest exchange always stay.
        """
        if self.n_tokens <= 0.7 * self._max_tokens:
            return False
        changed = False
        while self.n_tokens > 0.5 * self._max_tokens and len(self.messages) > 3:
            self._drop_oldest()
            changed = True
            while len(self.messages) > 3 and self.messages[1].role is Role.ASSISTANT:
                self._drop_oldest()
        return changed

    def _drop_oldest(self) -> None:
        """The first message after the instructions; calls of tools go with their results."""
        n = 2 if self.messages[1].uses else 1
        del self.messages[1 : 1 + n]
        self.dropped += n
