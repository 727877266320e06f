"""Cut a stream of text into clauses a voice can speak, as early as the text allows.

Every decision depends only on the text from the last cut to a fixed look-ahead, never on how the
text arrived, so any chunking gives the same clauses. A cut comes right after the punctuation that
ends a clause: the white space belongs to the next one, and the clauses' texts joined are the input.
A block of code is one clause, whatever its length, because it is told of as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from .languages.en import abbreviations
from .languages.en.clause_words import LEANING, OPENERS
from .languages.en.markup import FENCE
from .speakable import speak_words
from .tts.base import Clause

SENTENCE_END = ".!?"
CLAUSE_END = ",;:"
WIDE_END = "。！？"
DASHES = "—–-"
ELLIPSIS = "…"
CLOSERS = "\"'”’)]}»*_`~"
STOPS = frozenset(SENTENCE_END + CLAUSE_END + WIDE_END + ELLIPSIS + "—")

_CODE_ENDS = re.compile(rf"\n[ \t]*{FENCE}[ \t]*(?=\n|\Z)")
_LABEL_CHARS = 80  # a bracket that stays open longer begins no link

PAUSE_MS = {
    ".": 220, "!": 220, "?": 240, "…": 260, "\n": 300, ";": 150, ":": 150, "—": 130, ",": 90,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClauseRules:
    """Lengths in words. The first clause of a reply is cut early, because the caller waits for it.

    min: no cut below; soft: a comma cuts from here on (semicolons, colons and dashes from half of
    it); opener: an unpunctuated stretch is cut before a conjunction after this many words; max: and
    anywhere after this many. max_chars bounds a stretch without white space.
    """

    first_min: int = 2
    first_opener: int = 4
    first_max: int = 8
    min: int = 3
    soft: int = 10
    opener: int = 14
    max: int = 20
    max_chars: int = 400


class _Break(Enum):
    NONE = auto()
    SOFT = auto()
    STRONG = auto()  # semicolon, colon, dash
    HARD = auto()  # sentence end


@dataclass(frozen=True, slots=True)
class _Found:
    """A possible cut before text[at], or (at < 0) more text is needed to tell."""

    kind: _Break
    at: int
    mark: str = ""


_MORE = _Found(_Break.NONE, -1)


class ClauseSplitter:
    """One reply's text in, clauses out. `lexicon`: word -> respelling, for the ear only."""

    def __init__(
        self, lexicon: Mapping[str, str] | None = None, rules: ClauseRules | None = None
    ) -> None:
        self._lexicon = dict(lexicon or {})
        self._rules = rules or ClauseRules()
        self._text = ""
        self._offset = 0
        self._index = 0
        self._finished = False
        self._restart()

    def _restart(self) -> None:
        self._at = 0
        self._token_start = 0
        self._ends: list[int] = []  # ends of the complete words of the pending text

    def push(self, text: str) -> list[Clause]:
        """Add text; returns the clauses it completes. Raises ValueError after `finish`."""
        if self._finished:
            raise ValueError("the reply's text is already finished")
        self._text += text
        return self._drain(final=False)

    def finish(self) -> list[Clause]:
        """The text is complete; returns what is left. Idempotent."""
        if self._finished:
            return []
        self._finished = True
        clauses = self._drain(final=True)
        if self._text:
            clauses.append(self._take(len(self._text), ""))
        return clauses

    def _drain(self, *, final: bool) -> list[Clause]:
        clauses: list[Clause] = []
        while (cut := self._scan(final)) is not None:
            clauses.append(self._take(*cut))
        return clauses

    def _take(self, end: int, mark: str) -> Clause:
        text, self._text = self._text[:end], self._text[end:]
        start, self._offset = self._offset, self._offset + end
        words = speak_words(text, start, self._lexicon)
        pause = PAUSE_MS.get(mark, 0) if words else 0
        clause = Clause(self._index, text, (start, self._offset), words, pause)
        self._index += 1
        self._restart()
        return clause

    def _scan(self, final: bool) -> tuple[int, str] | None:
        """(end of the next clause, its mark), or None when more text is needed."""
        text = self._text
        while self._at < len(text):
            i = self._at
            char = text[i]
            if char == FENCE[0] and self._starts_line(i, ""):
                block = self._code(i, final)
                if block is None or block[0]:
                    return block
            if char.isspace():
                cut = self._word_ended(i)
                if cut is not None and self._in_label(cut[0]):
                    cut = None
                self._token_start = i + 1
                if cut is None and char == "\n" and self._ends:
                    cut = (i, "\n")
                if cut is not None:
                    return cut
            elif char in STOPS or (char in "-–" and self._is_spaced_dash(i)):
                found = self._judge(i, final)
                if found.at < 0:
                    return None
                if self._cuts(found) and not self._in_label(found.at):
                    return found.at, found.mark
                # skip the run that was judged, so that "..." is not judged dot by dot
                i = max(i, found.at - 1)
            self._at = i + 1
            if self._at >= self._rules.max_chars:
                return self._at, ""
        return None

    def _code(self, i: int, final: bool) -> tuple[int, str] | None:
        """What the back-tick that begins a line at text[i] means: the cut before or after a block
        of code, None when more text is needed, (0, "") if it begins none."""
        text = self._text
        if not text.startswith(FENCE, i):
            more = FENCE.startswith(text[i:]) and not final
            return None if more else (0, "")
        line_end = text.find("\n", i)
        if line_end < 0 and not final:
            return None
        if "`" in text[i + len(FENCE) : line_end if line_end >= 0 else len(text)]:
            return 0, ""  # a few words in three back-ticks
        if text[:i].strip():
            return len(text[:i].rstrip()), "\n"
        close = _CODE_ENDS.search(text, line_end) if line_end >= 0 else None
        if close is not None and (final or close.end() < len(text)):
            return close.end(), "\n"
        return (len(text), "") if final else None

    # --- word limits

    def _word_ended(self, end: int) -> tuple[int, str] | None:
        token = self._text[self._token_start : end]
        if not any(map(str.isalnum, token)):
            return None
        before = len(self._ends)
        first = self._index == 0
        opener = self._rules.first_opener if first else self._rules.opener
        limit = self._rules.first_max if first else self._rules.max
        if before >= opener and token.lower() in OPENERS:
            at = self._steady(before, opener)
            if at is not None:
                return at, ""
        self._ends.append(end)
        if before + 1 >= limit:
            at = self._steady(before + 1, opener)
            return (at if at is not None else end), ""
        return None

    def _steady(self, words: int, least: int) -> int | None:
        """End of the last of `words` words that does not lean on what follows."""
        for n in range(words, max(least, 1) - 1, -1):
            start = self._ends[n - 2] if n >= 2 else 0
            word = self._text[start : self._ends[n - 1]].strip().lower()
            if word not in LEANING and not any(map(str.isdigit, word)):
                return self._ends[n - 1]
        return None

    # --- punctuation

    def _cuts(self, found: _Found) -> bool:
        if found.kind is _Break.NONE:
            return False
        token = self._text[self._token_start : found.at]
        words = len(self._ends) + any(map(str.isalnum, token))
        if self._index == 0:
            return words >= self._rules.first_min
        least = {
            _Break.HARD: self._rules.min,
            _Break.STRONG: max(self._rules.min, self._rules.soft // 2),
            _Break.SOFT: self._rules.soft,
        }[found.kind]
        return words >= least

    def _is_spaced_dash(self, i: int) -> bool:
        """A lone or double hyphen or en dash with white space before it."""
        return not self._text[self._token_start : i].strip(DASHES)

    def _judge(self, i: int, final: bool) -> _Found:
        """What the punctuation at text[i] means; the reply's end counts as white space."""
        text, n = self._text, len(self._text)
        end = i + 1
        run_of = SENTENCE_END + ELLIPSIS if text[i] not in DASHES else DASHES
        while end < n and text[end] in run_of:
            end += 1
        if end >= n and not final:
            return _MORE
        run = text[i:end]
        if run[0] in "-–":
            spaced = end >= n or text[end].isspace()
            return _Found(_Break.STRONG if spaced and self._ends else _Break.NONE, end, "—")
        if run[0] == "—":
            return _Found(_Break.STRONG if self._ends or i else _Break.NONE, end, "—")
        if run[0] in WIDE_END:
            return _Found(_Break.HARD, end, ".")
        closed = end
        while closed < n and text[closed] in CLOSERS:
            closed += 1
        if closed >= n and not final:
            return _MORE
        if closed < n and not text[closed].isspace() and not _is_symbol(text[closed]):
            return _Found(_Break.NONE, end)
        if run[0] in CLAUSE_END:
            return _Found(_Break.SOFT if run[0] == "," else _Break.STRONG, closed, run[0])
        if ELLIPSIS in run or run.startswith(".."):
            return _Found(_Break.SOFT, closed, ELLIPSIS)
        if run == ".":
            return self._full_stop(i, closed, final)
        if closed > end:
            return self._unless(str.islower, closed, final, run[-1])
        return _Found(_Break.HARD, closed, run[-1])

    def _full_stop(self, i: int, closed: int, final: bool) -> _Found:
        token = self._text[self._token_start : i].lstrip("\"'“‘([{*_`")
        bare = token.replace(".", "").lower()
        if bare.isdigit() and not self._ends and self._starts_line(self._token_start):
            return _Found(_Break.NONE, i + 1)  # the number of a list item
        if len(bare) == 1 and bare.isalpha() and bare not in "ia":
            return _Found(_Break.NONE, i + 1)  # an initial
        if bare in abbreviations.NEVER_LAST:
            return _Found(_Break.NONE, i + 1)
        if bare in abbreviations.BEFORE_NUMBER:
            return self._unless(str.isdigit, closed, final, ".")
        dotted = "." in token
        if bare in abbreviations.MAYBE_LAST or (dotted and bare.isalpha()) or closed > i + 1:
            if bare == "st":
                return _Found(_Break.NONE, i + 1)
            return self._unless(_continues, closed, final, ".")
        return _Found(_Break.HARD, closed, ".")

    def _unless(
        self, goes_on: Callable[[str], bool], closed: int, final: bool, mark: str
    ) -> _Found:
        """A sentence end unless the next visible character says that the sentence goes on."""
        rest = self._text[closed:].lstrip()
        if not rest:
            return _Found(_Break.HARD, closed, mark) if final else _MORE
        return _Found(_Break.NONE if goes_on(rest[0]) else _Break.HARD, closed, mark)

    def _starts_line(self, at: int, marks: str = ">*-#") -> bool:
        line = self._text[:at].rpartition("\n")[2]
        whole_line = "\n" in self._text[:at] or self._index == 0
        return whole_line and not line.strip(" \t" + marks)

    def _in_label(self, at: int) -> bool:
        """A link's label stays with its address, which is not said."""
        opened = self._text.rfind("[", max(0, at - _LABEL_CHARS), at)
        return opened >= 0 and self._text.find("]", opened, at) < 0


def _continues(char: str) -> bool:
    return not (char.isupper() or char in '"“‘([*_#-' or _is_symbol(char))


def _is_symbol(char: str) -> bool:
    """Emoji and the like, which may stand right after punctuation."""
    return ord(char) >= 0x2190 and not char.isalnum()
