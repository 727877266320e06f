"""Session tokens: what a page or a phone gets instead of a key. Short-lived, signed, of few rights.

A JSON Web Token (RFC 7519) with HMAC-SHA256 and a secret of this process: after a restart no old
token is good. A token opens new calls until it expires; a call under way goes on.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jwt

from voice_agent.errors import CapacityError, UsageError

from .grant import Change, Grant, Scope

PREFIX = "ek_"
"""What clients of the Realtime API expect an ephemeral key to begin with."""
LEAST_S, DEFAULT_S, MOST_S = 10, 60, 7200
MAX_SESSION_BYTES = 256 << 10
MAX_KEPT_BYTES = 16 << 20
_ALGORITHM = "HS256"
_REQUIRED = ["exp", "jti", "sub"]


@dataclass(frozen=True, slots=True)
class Token:
    """value: what the client sends as its key. expires_at: Unix seconds."""

    value: str
    expires_at: int
    id: str


@dataclass(frozen=True, slots=True)
class _Kept:
    session: dict[str, Any]
    n_bytes: int
    expires_at: int


class Tokens:
    """Mints and verifies. Sessions laid down with a token stay here, so the client can't read them.

    good: whether a key's id still opens the door; a revoked key takes its tokens along.
    """

    def __init__(
        self,
        good: Callable[[str], bool] = lambda subject: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._secret = secrets.token_bytes(32)
        self._good = good
        self._now = now
        self._kept: dict[str, _Kept] = {}
        self._kept_bytes = 0

    def mint(
        self,
        grant: Grant,
        *,
        seconds: float = DEFAULT_S,
        agent: str | None = None,
        changes: Iterable[Change] = (),
        scopes: Iterable[Scope] = (Scope.CALL,),
        session: dict[str, Any] | None = None,
    ) -> Token:
        """A token with at most the rights of `grant`.

        agent: None: the grant's own. session: kept here until the token expires. Raises UsageError
        VA455 for what the grant does not allow, CapacityError VA456 when too much is kept.
        """
        wanted, changed = frozenset(scopes), frozenset(changes)
        if not LEAST_S <= seconds <= MOST_S:
            raise UsageError(f"A token lives {LEAST_S} to {MOST_S} seconds.", code="VA455")
        _check(grant, wanted, changed, agent)
        expires_at = int(self._now() + seconds)
        token_id = secrets.token_urlsafe(12)
        claims = {
            "sub": grant.subject,
            "jti": token_id,
            "exp": expires_at,
            "agent": agent or grant.agent,
            "scopes": sorted(wanted),
            "changes": sorted(changed),
        }
        if session is not None:
            self._keep(token_id, session, expires_at)
        value = jwt.encode(claims, self._secret, algorithm=_ALGORITHM)
        return Token(PREFIX + value, expires_at, token_id)

    def verify(self, value: str) -> Grant | None:
        """What the token allows; None for one that is not ours, expired, or of a revoked key."""
        if not value.startswith(PREFIX):
            return None
        try:
            claims = jwt.decode(
                value[len(PREFIX) :],
                self._secret,
                algorithms=[_ALGORITHM],
                options={"require": _REQUIRED, "verify_exp": False},
            )
        except (jwt.InvalidTokenError, ValueError):
            return None
        if claims["exp"] <= self._now() or not self._good(claims["sub"]):
            return None
        kept = self._kept.get(claims["jti"])
        return Grant(
            claims["sub"],
            frozenset(map(Scope, claims["scopes"])),
            frozenset(map(Change, claims["changes"])),
            claims["agent"],
            claims["jti"],
            kept.session if kept else None,
        )

    def _keep(self, token_id: str, session: dict[str, Any], expires_at: int) -> None:
        n_bytes = len(json.dumps(session))
        if n_bytes > MAX_SESSION_BYTES:
            raise UsageError(
                f"The session has {n_bytes} bytes; {MAX_SESSION_BYTES} may be laid down with a "
                "token.",
                code="VA455",
            )
        now = self._now()
        for old in [key for key, kept in self._kept.items() if kept.expires_at <= now]:
            self._kept_bytes -= self._kept.pop(old).n_bytes
        if self._kept_bytes + n_bytes > MAX_KEPT_BYTES:
            raise CapacityError(
                "Too many tokens with sessions are waiting. Try again in a moment.", code="VA456"
            )
        self._kept[token_id] = _Kept(session, n_bytes, expires_at)
        self._kept_bytes += n_bytes


def _check(
    grant: Grant, scopes: frozenset[Scope], changes: frozenset[Change], agent: str | None
) -> None:
    if grant.token is not None:
        raise UsageError("A token can't make tokens: use the key.", code="VA455")
    for scope in scopes:
        if not grant.opens(scope):
            raise UsageError(f"This key does not have the scope {scope.value!r}.", code="VA455")
    for change in changes:
        if not grant.may_change(change):
            raise UsageError(f"This key may not let others change {change.value}.", code="VA455")
    if agent is not None and not grant.allows_agent(agent):
        raise UsageError(f"This key does not open the agent {agent[:64]!r}.", code="VA455")
