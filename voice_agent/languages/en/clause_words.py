"""English words at which a long stretch without punctuation may be cut."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A clause may begin with these.
OPENERS = _words(
    "and but or so because although though while when where which who if unless until since that"
    " then after before as"
)

# A clause must not end with these: they lean on the next word.
LEANING = _words(
    "a an the of to in on at by for with from into and but or nor so as if than that this these"
    " those my your his her its our their is are was were be been am will would can could should"
    " may might must do does did not no very more most i you he she it we they who which what"
    " there's it's that's i'm don't can't won't about over under per"
)
