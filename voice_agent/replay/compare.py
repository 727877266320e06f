"""What a call decided then and now, side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from .tape import Taken

LATE_MS = 60  # a busy process handles a frame, or looks at a timer, up to so much after its time
_MS = re.compile(r"(\w+_ms):(\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One decision. then, now: None where the other side has no such one."""

    then: Taken | None
    now: Taken | None

    @property
    def same(self) -> bool:
        return self.then is not None and self.now is not None and not self.changed

    @property
    def changed(self) -> list[str]:
        """Names of the reasons that differ."""
        if self.then is None or self.now is None:
            return []
        old, new = self.then.why, self.now.why
        names = sorted(old.keys() | new.keys())
        return [name for name in names if not _alike(name, old.get(name), new.get(name))]


def rows(then: Sequence[Taken], now: Sequence[Taken]) -> list[Row]:
    """Aligned by what was decided about which turn, and why; times are not compared."""
    old, new = [t.key for t in then], [t.key for t in now]
    out: list[Row] = []
    for tag, a, b, c, d in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "equal":
            out += [Row(x, y) for x, y in zip(then[a:b], now[c:d], strict=True)]
        else:
            out += [Row(x, None) for x in then[a:b]]
            out += [Row(None, y) for y in now[c:d]]
    return out


def _alike(name: str, old: object, new: object) -> bool:
    """Equal, but for media times that depend on when the process got round to it."""
    if isinstance(old, str) and isinstance(new, str):
        times = zip(_MS.findall(old), _MS.findall(new), strict=False)
        near = all(_near(int(a[1]), int(b[1])) for a, b in times)
        return near and _MS.sub(r"\1", old) == _MS.sub(r"\1", new)
    if name.endswith("_ms") and isinstance(old, int | float) and isinstance(new, int | float):
        return _near(old, new)
    return old == new


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= LATE_MS
