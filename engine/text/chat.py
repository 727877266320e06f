"""A model's chat template as token segments, so that a dialogue only ever grows at its end.

The template is rendered once with marked contents and cut into what surrounds each message. Then a
few dialogues are checked: the segments' ids, joined, must equal the ids of the template's text.
A model whose template rewrites earlier messages is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engine.errors import ModelError
from engine.text.prompt import prompt_ids
from engine.text.template import ChatTemplate, Message
from engine.text.tokenizer import Tokenizer
from engine.text.tools import CLOSE, OPEN, Tool, call_text, knows_tools, spelled_out

_MARK = "\x02{}\x03"
"""Content no template contains."""
_DIALOGUES: tuple[tuple[Message, ...], ...] = (
    (("system", "Be brief."), ("user", "Hello there!"), ("assistant", "Hi."), ("user", "Bye")),
    (("system", "Zwei Sätze, 12 words\nand a line."), ("user", "¿Qué tal? 你好 🙂"),
     ("assistant", "1, 2, 3..."), ("user", "It's 5 o'clock?"), ("assistant", "Yes!"),
     ("user", "ok")),
    (("system", "  spaced  "), ("user", "\n tail \n"), ("assistant", "x"), ("user", " y")),
    (("system", "s"), ("user", "first part"), ("user", "second part")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the template writes before and after one message's content."""

    before: str
    after: str


class ChatFormat:
    """Token ids of new segments. A content can't produce special tokens, whatever it says."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Raises ModelError if the template's dialogues don't grow at their end."""
        self._tokenizer = tokenizer
        self._template = template
        self._strip = _strips(template)
        self._system, self._user, self._assistant = _frames(template)
        if tokenizer.add_bos and not self._system.before.startswith(self._bos_text()):
            self._system = _Frame(self._bos_text() + self._system.before, self._system.after)
        self._open = self._segment(_Frame(self._assistant.before, ""), "")
        self._close = self._segment(_Frame("", self._assistant.after), "")
        for dialogue in _DIALOGUES:
            self._verify(dialogue)
        self.knows_tools = knows_tools(template)
        """Whether the template itself writes tools, as `engine.text.tools` reads their calls."""

    def system(self, text: str, tools: Sequence[Tool] = ()) -> list[int]:
        """The instructions; opens a dialogue (with the beginning-of-text token if there is one).

        tools: told as the template tells them, or spelled out where it knows none.
        """
        if not tools:
            return self._segment(self._system, text)
        message = {"role": "system", "content": text}
        if self.knows_tools:
            ids = self.prompt([message], tools)
            if ids[-len(self._open) :] == self._open:
                return ids[: -len(self._open)]
        (told,) = spelled_out([message], tools)
        return self._segment(self._system, told["content"])

    def user(self, text: str) -> list[int]:
        """One message of the caller."""
        return self._segment(self._user, text)

    def user_open(self, text: str) -> list[int]:
        """A message of the caller that may go on: without what ends it."""
        return self._segment(_Frame(self._user.before, ""), text)

    def tool_calls(self, calls: Sequence[tuple[str, str]]) -> list[int]:
        """What an answer that calls tools says: (name, arguments as JSON) each."""
        ids: list[int] = []
        for i, (name, arguments) in enumerate(calls):
            frame = _Frame(("\n" if i else "") + OPEN + "\n", "\n" + CLOSE)
            ids += self._segment(frame, call_text(name, arguments))
        return ids

    def tool_results(self, results: Sequence[str]) -> list[int]:
        """The message with what the calls of the answer before gave, in their order."""
        before, after = self._user.before + "<tool_response>\n", "\n</tool_response>"
        between = "\n</tool_response>\n<tool_response>\n"
        return self._segment(_Frame(before, after + self._user.after), between.join(results))

    def assistant_open(self) -> list[int]:
        """What precedes an answer: generation starts here."""
        return list(self._open)

    def assistant_close(self) -> list[int]:
        """What ends an answer, the end-of-turn token first; the next segment follows it."""
        return list(self._close)

    def dialogue(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole dialogue, joined from its segments; it starts with a system message."""
        ids: list[int] = []
        for role, content in messages:
            if role == "system":
                ids += self.system(content)
            elif role == "user":
                ids += self.user(content)
            else:
                ids += self._open + self._tokenizer.encode(content) + self._close
        return ids

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Ids of any dialogue by the whole template, up to where the answer begins.

        messages: `role` and `content`, with `tool_calls` and the role `tool` as templates know
        them. tools: as in OpenAI's requests. Raises UsageError if the template refuses them.
        """
        return prompt_ids(self._tokenizer, self._template, messages, tools, self.knows_tools)

    def _segment(self, frame: _Frame, content: str) -> list[int]:
        """Ids of a framed content: special tokens are read in the frame, never in the content.

        Plain text next to the content is tokenised together with it, as the whole text would be.
        """
        text = content.strip() if self._strip else content
        split = self._tokenizer.split_special
        head, tail = split(frame.before), split(frame.after)
        last = head.pop() if head and isinstance(head[-1], str) else ""
        first = tail.pop(0) if tail and isinstance(tail[0], str) else ""
        ids: list[int] = []
        for piece in [*head, f"{last}{text}{first}", *tail]:
            ids += [piece] if isinstance(piece, int) else self._tokenizer.encode(piece)
        return ids

    def _verify(self, dialogue: tuple[Message, ...]) -> None:
        try:
            text = self._template.render(dialogue)
            opened = self._template.render(dialogue, open_answer=True)
        except ModelError:
            if any(a[0] == b[0] for a, b in pairwise(dialogue)):
                return  # a template may insist on alternating roles
            raise
        if self._tokenizer.add_bos and not text.startswith(self._bos_text()):
            text, opened = self._bos_text() + text, self._bos_text() + opened
        for want, have in (
            (text, self.dialogue(dialogue)),
            (opened, self.dialogue(dialogue) + self._open),
        ):
            if self._tokenizer.encode(want, allow_special=True) != have:
                raise ModelError(
                    "the model's chat template can't be cut into segments: joined, they differ "
                    f"from the whole dialogue {want[:200]!r}"
                )

    def _bos_text(self) -> str:
        return self._tokenizer.special_text(self._tokenizer.bos)


def _frames(template: ChatTemplate) -> tuple[_Frame, _Frame, _Frame]:
    """What surrounds a system, a user and an assistant message."""
    s, u, a, v = (_MARK.format(i) for i in range(4))
    first = template.render([("system", s)])
    asked = template.render([("system", s), ("user", u)])
    opened = template.render([("system", s), ("user", u)], open_answer=True)
    answered = template.render([("system", s), ("user", u), ("assistant", a), ("user", v)])
    if not asked.startswith(first) or not opened.startswith(asked):
        raise ModelError("the model's chat template rewrites earlier messages")
    if not answered.startswith(opened + a):
        raise ModelError(
            "the model's chat template opens an answer in another way than it closes it"
        )
    user = _cut(asked[len(first) :], u)
    if not answered.endswith(user.before + v + user.after):
        raise ModelError("the model's chat template writes a later user message differently")
    after = answered[len(opened) + len(a) : len(answered) - len(user.before + v + user.after)]
    return _cut(first, s), user, _Frame(opened[len(asked) :], after)


def _cut(text: str, mark: str) -> _Frame:
    before, found, after = text.partition(mark)
    if not found:
        raise ModelError("the model's chat template leaves a message out")
    return _Frame(before, after)


def _strips(template: ChatTemplate) -> bool:
    """Whether the template trims white space around a content."""
    text = template.render([("system", "s"), ("user", " \x02 ")])
    return " \x02 " not in text
