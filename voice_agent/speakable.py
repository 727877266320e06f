"""Text for the ear: what a voice should say for a piece of text, word by word, with its source.

Numbers, money, dates, times, units, addresses, acronyms and symbols are spelled out; markdown and
emoji are dropped, code is told of and not read. Each spoken word carries the characters it stands
for and the sentence punctuation that follows it, so that nothing of the text is lost for the
history. How English is written is in `languages/en/written.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from .languages.en.written import PUNCTUATION, RESPELLED, RULES, STOPPED
from .languages.rule import is_at_end
from .tts.base import SpokenWord

_LINK = r"!?\[(?P<label>[^\[\]]*)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s+\"[^\"]*\")?\)"
_FORMS = "|".join(f"(?P<{rule.name}>{rule.pattern})" for rule in RULES)
_SAID = {rule.name: rule.said for rule in RULES}
_MARKS = frozenset(PUNCTUATION.values())
_ENDS = "".join(sorted(_MARKS))


def speak_words(
    text: str, base_offset: int, lexicon: Mapping[str, str] | None = None
) -> tuple[SpokenWord, ...]:
    """The words a voice says for `text`, which starts at base_offset of the reply.

    lexicon: word or words -> respelling, matched without regard to case. Spans never decrease; the
    words of one source ("$5") share it. Empty when there is nothing to say.
    """
    known = {key.lower(): said for key, said in {**RESPELLED, **(lexicon or {})}.items()}
    out: list[SpokenWord] = []
    for start, end, words in _scan(text, known):
        if not words:
            continue
        if words[0] in _MARKS:
            if out and out[-1].text[-1] not in _ENDS:
                last = out[-1]
                _widen(out, last.source, (last.source[0], base_offset + end), words[0])
            continue
        source = (base_offset + start, base_offset + end)
        out += [SpokenWord(word, source) for said in words for word in said.split()]
    return tuple(out)


def _widen(out: list[SpokenWord], old: tuple[int, int], new: tuple[int, int], mark: str) -> None:
    """Punctuation joins the last word's sound and the source of every word it shares one with."""
    out[-1] = SpokenWord(out[-1].text + mark, new)
    for i in range(len(out) - 2, -1, -1):
        if out[i].source != old:
            break
        out[i] = SpokenWord(out[i].text, new)


@lru_cache(maxsize=64)
def _scanner(keys: tuple[str, ...]) -> re.Pattern[str]:
    """Written forms, words of a lexicon before them. A key's letters end where a word ends, and not
    in an address."""
    spelt = [
        (r"(?<!\w)" if key[0].isalnum() else "")
        + re.escape(key)
        + (r"(?:['’]s)?(?![\w@]|[-./]\w)" if key[-1].isalnum() else "")
        for key in sorted(keys, key=len, reverse=True)
    ]
    return re.compile(
        f"(?P<link>{_LINK})|(?P<lexicon>(?i:{'|'.join(spelt)}))|{_FORMS}", re.MULTILINE
    )


def _scan(text: str, lexicon: Mapping[str, str]) -> Iterator[tuple[int, int, list[str]]]:
    for match in _scanner(tuple(lexicon)).finditer(text):
        kind = match.lastgroup
        assert kind is not None
        if kind == "link":
            at = match.start("label")
            inner = list(_scan(match.group("label"), lexicon))
            for i, (start, end, words) in enumerate(inner):
                last = i == len(inner) - 1
                yield at + start, match.end() if last else at + end, words
        else:
            yield match.start(), match.end(), _say(kind, match, lexicon)


def _say(kind: str, match: re.Match[str], lexicon: Mapping[str, str]) -> list[str]:
    said = match.group()
    bare = said.replace(".", "") if kind == "initials" else said
    respelled = _respelled(bare, lexicon) if kind in ("lexicon", "word", "initials") else None
    words = [respelled] if respelled is not None else _SAID[kind](match)
    if kind in STOPPED and said[-1] == "." and words and is_at_end(match):
        words = [*words[:-1], words[-1] + "."]  # the abbreviation's stop also ends the sentence
    return words


def _respelled(text: str, lexicon: Mapping[str, str]) -> str | None:
    lowered = text.replace("’", "'").rstrip("'").lower()
    if lowered in lexicon:
        return lexicon[lowered]
    if lowered.endswith("'s") and lowered[:-2] in lexicon:
        return lexicon[lowered[:-2]] + "'s"
    return None
