"""Code words: what a session is known by in its own agent's voice.

With scripted answers every session gets a word when it connects (its instructions say it), and the
scripted model puts the word of *its own prompt* into every reply. Whoever hears another caller's
word heard another caller's answer.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

WORDS = (
    "banana", "elephant", "piano", "tomato", "umbrella", "volcano", "dinosaur", "kangaroo",
    "potato", "helicopter", "butterfly", "pineapple", "chocolate", "crocodile", "tornado",
    "telescope", "octopus", "spaghetti", "broccoli", "mosquito", "orchestra", "penguin",
    "library", "museum", "astronaut", "bicycle", "calendar", "diamond", "factory", "gorilla",
    "hamburger", "jellyfish", "lemonade", "mountain", "newspaper", "rainbow", "sandwich",
    "universe", "vegetable", "waterfall",
)  # fmt: skip
"""Told apart by their sound; none of them is in the sentences below."""
SENTENCES = (
    "I have looked that up for you, and it is all in order.",
    "You can call us again at any hour of the day.",
    "We will send it to you before the end of the week.",
    "There is nothing more that you need to do about it.",
    "Please tell me if you would like to hear the details again.",
    "The next one leaves a little later than it usually does.",
    "My colleague has written it down and will take care of it.",
)
LONG = 4
"""From so many sentences on a small model is asked for a story: it answers briefly else."""
_WORD = re.compile(r"code word is (\w+)")
_LENGTH = re.compile(r"(?:in|of) (\d+) (?:short )?sentence")
_PLAIN = re.compile(r"[a-z]+")


def instructions(word: str | None, sentences: int, filler_words: int = 0, salt: int = 0) -> str:
    """Of one session. filler_words: a longer prompt, of no other session's beginning."""
    text = f"You are a friendly phone agent. Answer in {sentences} short sentence"
    text += "." if sentences == 1 else "s."
    if sentences >= LONG:
        text = f"You are a storyteller on the phone. Tell a long story of {sentences} sentences."
    if word is not None:
        text = f"Your code word is {word}. {text}"
    if filler_words:
        said = " ".join(SENTENCES).split()
        n = -(-filler_words // len(said))
        text = f"Case {salt}. {' '.join((said * n)[:filler_words])} {text}"
    return text


def reply_text(system: str, turn: int) -> str:
    """What the scripted model answers: a sentence with the prompt's word, then others, as many as
    the prompt asks for."""
    found, length = _WORD.search(system), _LENGTH.search(system)
    n = int(length[1]) if length else 1
    said = [f"I can tell you that it is the {found[1]}."] if found else []
    said += [SENTENCES[(turn + i) % len(SENTENCES)] for i in range(n - len(said))]
    return " ".join(said)


class ScriptedThinker:
    """A language model that answers at once and knows nothing (`voice_agent.library.Thinker`)."""

    name = "scripted"

    async def reply(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> AsyncIterator[str]:
        system = next((str(m["content"]) for m in messages if m["role"] == "system"), "")
        for piece in reply_text(system, len(messages)).split(" "):
            yield piece + " "


def words_in(text: str) -> set[str]:
    """The code words that a transcript holds; a plural counts."""
    said = set(_PLAIN.findall(text.lower()))
    return {word for word in WORDS if word in said or f"{word}s" in said}
