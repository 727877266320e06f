"""The history as token ids: append-only, byte-stable, and only what was heard.

Every message becomes a segment of token ids through the model's own chat template once, and is
never rendered again, so the ids of turn n are a prefix of turn n+1 and the engine's prefix cache
hits to the token. An interrupted reply is cut at the token boundary at or before the last heard
word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class Chat(Protocol):
    """The parts of the engine's chat format used here; each returns ids of a *new segment* only."""

    def system(self, text: str) -> list[int]: ...
    def user(self, text: str) -> list[int]: ...
    def user_open(self, text: str) -> list[int]:
        """A beginning of `user` for a message that goes on with more words."""
        ...

    def assistant_open(self) -> list[int]: ...
    def assistant_close(self) -> list[int]: ...


class Decoder(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ids: its segment, template tokens included."""

    role: Role
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a reply is made from, in both forms: a remote model reads the messages (role, text), the
    engine in this process the token ids of the same history."""

    messages: tuple[tuple[Role, str], ...]
    ids: tuple[int, ...]


class Conversation:
    """Owns one call's history. max_tokens: the model's context length less room for a reply."""

    def __init__(self, chat: Chat, tokenizer: Decoder, instructions: str, max_tokens: int) -> None:
        self._chat = chat
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self.messages: list[Message] = [
            Message(Role.SYSTEM, instructions, tuple(chat.system(instructions)))
        ]
        self.dropped = 0

    @property
    def n_tokens(self) -> int:
        return sum(len(m.ids) for m in self.messages)

    def set_instructions(self, text: str) -> None:
        """Replace the system message; everything behind it has to be computed anew."""
        self.messages[0] = Message(Role.SYSTEM, text, tuple(self._chat.system(text)))

    def prefix(self) -> Prompt:
        """What every prompt from here on starts with."""
        return Prompt(
            tuple((m.role, m.text) for m in self.messages),
            tuple(i for m in self.messages for i in m.ids),
        )

    def prompt(self, user_text: str | None = None) -> Prompt:
        """To generate a reply from, with `user_text` as a message not yet committed."""
        so_far = self.prefix()
        messages, ids = so_far.messages, list(so_far.ids)
        if user_text is not None:
            messages = (*messages, (Role.USER, user_text))
            ids += self._chat.user(user_text)
        return Prompt(messages, (*ids, *self._chat.assistant_open()))

    def opening(self, words: str) -> tuple[int, ...]:
        """What the next prompt begins with if the caller's message begins with `words`."""
        return (*self.prefix().ids, *self._chat.user_open(words))

    def add_user(self, text: str) -> None:
        self.messages.append(Message(Role.USER, text, tuple(self._chat.user(text))))

    def add_system(self, text: str) -> None:
        """A note from the operator or client in the middle of the dialogue."""
        self.messages.append(Message(Role.SYSTEM, text, tuple(self._chat.system(text))))

    def reopen_user(self) -> str | None:
        """Take back the last message if it is the caller's (nothing of ours was heard since)."""
        if len(self.messages) > 1 and self.messages[-1].role is Role.USER:
            return self.messages.pop().text
        return None

    def add_assistant(self, ids: Sequence[int], text: str, heard_chars: int) -> str:
        """Append what was heard of a reply; returns exactly the text that entered the history.

        ids: the reply's token ids as generated, none if another process made it; text: their
        decoding; heard_chars: end of the last heard word in `text`. Nothing heard means no message.
        """
        if not ids:
            text = text[: max(0, heard_chars)]
            ids = self._tokenizer.encode(text)
        kept, kept_text = self.cut(ids, text, heard_chars)
        if not kept_text.strip():
            return ""
        segment = [*self._chat.assistant_open(), *kept, *self._chat.assistant_close()]
        self.messages.append(Message(Role.ASSISTANT, kept_text, tuple(segment)))
        return kept_text

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

    def truncate_last(self, heard_chars: int) -> str:
        """A client says less was heard than we counted: cut the last reply further."""
        last = self.messages[-1]
        if last.role is not Role.ASSISTANT or heard_chars >= len(last.text):
            return last.text if last.role is Role.ASSISTANT else ""
        self.messages.pop()
        n_open, n_close = len(self._chat.assistant_open()), len(self._chat.assistant_close())
        body = last.ids[n_open : len(last.ids) - n_close]
        return self.add_assistant(body, last.text, heard_chars)

    def make_room(self) -> bool:
        """At 70 % full, drop the oldest exchanges down to 50 %. True if the prefix changed.

        The system message and the latest exchange always stay.
        """
        if self.n_tokens <= 0.7 * self._max_tokens:
            return False
        changed = False
        while self.n_tokens > 0.5 * self._max_tokens and len(self.messages) > 3:
            del self.messages[1]
            self.dropped += 1
            changed = True
            while len(self.messages) > 3 and self.messages[1].role is Role.ASSISTANT:
                del self.messages[1]
                self.dropped += 1
        return changed
