"""English listener responses: sounds that ask the speaker to go on, not to stop."""

from __future__ import annotations

import re

_ALONE = frozenset(
    [
        "mm", "mmm", "mhm", "mmhm", "mmhmm", "mm-hm", "mm-hmm", "mhmm", "hm", "hmm", "hmmm",
        "uh-huh", "uhhuh", "huh", "uh", "um", "er", "ah", "ahh", "oh", "ooh", "yeah", "yep", "yup",
        "yes", "ok", "okay", "right", "sure", "wow", "really", "alright", "i-see",
    ]
)  # fmt: skip
_MAX_WORDS = 2
_WORD = re.compile(r"[a-z][a-z'-]*")


def is_backchannel(text: str) -> bool:
    """True if every word of a short text is a listener response ("mm-hm", "oh okay", "I see")."""
    flat = (
        text.lower().replace("i see", "i-see").replace("uh huh", "uh-huh").replace("mm hm", "mm-hm")
    )
    words = _WORD.findall(flat)
    return 0 < len(words) <= _MAX_WORDS and all(w in _ALONE for w in words)
