"""Coming back to a call whose line was lost: the credential, and the texts that were not seen.

A credential opens its own call and nothing else, and ends with it. It is used once: with the line
that it brought a new one has come, and once the page is known to have that, the old one is void.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from voice_agent.errors import UsageError
from voice_agent.keys import digest

if TYPE_CHECKING:
    from .line_call import LineCall

JOURNAL = 512
"""Texts that are kept for a page that comes back: over a minute of a lively call."""


class Credential:
    """One call's. Only hashes are kept here; nothing of it is logged."""

    def __init__(self) -> None:
        self._good: list[str] = []

    def renew(self) -> str:
        """The next one. The ones before stay good until `settle`."""
        token = secrets.token_urlsafe(32)
        self._good.append(digest(token))
        return token

    def settle(self) -> None:
        """The page has the newest: the others are void."""
        del self._good[:-1]

    def fits(self, token: str) -> bool:
        """Every one is compared, each in constant time."""
        offered, fits = digest(token), False
        for good in self._good:
            fits |= hmac.compare_digest(offered, good)
        return fits

    def end(self) -> None:
        """The call is over."""
        self._good.clear()


class Journal:
    """What a page was told, by number, so that what a lost line swallowed can be told again."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=JOURNAL)
        self.told = 0

    def add(self, text: str) -> None:
        self._texts.append(text)
        self.told += 1

    def after(self, seen: int) -> list[str]:
        """What followed the first `seen` texts, as far as it is still here."""
        missed = max(0, min(self.told - seen, len(self._texts)))
        return list(self._texts)[len(self._texts) - missed :]


def find(calls: Iterable[LineCall], token: str) -> LineCall:
    """The call that `token` belongs to. Raises UsageError VA498."""
    found = [call for call in calls if call.credential.fits(token)]
    if not found:
        raise over()
    return found[0]


def over() -> UsageError:
    return UsageError("This call is over, or was resumed since: start a new one.", code="VA498")
