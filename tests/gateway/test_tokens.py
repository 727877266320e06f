"""Tokens: no more rights than their maker's, no longer than they say, nothing readable inside."""

from __future__ import annotations

import base64
import json

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.grant import LOCAL, Change, Grant, Scope, of_key
from gateway.tokens import MAX_KEPT_BYTES, MAX_SESSION_BYTES, PREFIX, Tokens
from voice_agent.errors import CapacityError, UsageError

pytestmark = pytest.mark.unit
CALLS = of_key("k1", [Scope.CALL], agent="reception")


class Time:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def test_a_token_may_nothing_but_call_unless_it_says_so() -> None:
    tokens = Tokens()
    grant = tokens.verify(tokens.mint(LOCAL, agent="reception").value)
    assert grant is not None
    assert grant.scopes == {Scope.CALL}
    assert not grant.changes
    assert grant.agent == "reception"
    assert grant.subject == LOCAL.subject
    assert not grant.admin
    assert not grant.opens(Scope.API)
    assert not grant.allows_agent("other")
    more = tokens.verify(tokens.mint(LOCAL, changes=[Change.VOICE], scopes=list(Scope)).value)
    assert more is not None
    assert more.admin
    assert more.changes == {Change.VOICE}


def test_it_ends_when_it_says_and_with_its_key() -> None:
    time, good = Time(), {"k1"}
    tokens = Tokens(lambda subject: subject in good, time)
    token = tokens.mint(CALLS, seconds=60)
    assert token.expires_at == 1060
    time.s = 1059.9
    assert tokens.verify(token.value) is not None
    good.clear()
    assert tokens.verify(token.value) is None
    good.add("k1")
    time.s = 1060.0
    assert tokens.verify(token.value) is None


def test_none_of_another_process_and_none_unsigned() -> None:
    ours, others = Tokens(), Tokens()
    value = others.mint(LOCAL).value
    assert ours.verify(value) is None
    claims = {
        "sub": "x", "jti": "x", "exp": 1e12, "agent": None, "scopes": ["admin"], "changes": [],
    }  # fmt: skip
    assert ours.verify(PREFIX + jwt.encode(claims, None, algorithm="none")) is None
    assert ours.verify(PREFIX + jwt.encode(claims, "k" * 32, algorithm="HS256")) is None
    assert ours.verify(value[len(PREFIX) :]) is None


@given(st.text(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_anything_else_is_no_token(text: str, at: int, byte: int) -> None:
    tokens = _TOKENS
    assert tokens.verify(text) is None
    assert tokens.verify(PREFIX + text) is None
    value = _VALUE
    if at < len(value) and ord(value[at]) != byte:
        changed = value[:at] + chr(byte) + value[at + 1 :]
        grant = tokens.verify(changed)  # base64's unused last bits may spell the same bytes
        assert grant is None or grant == tokens.verify(value)


_TOKENS = Tokens()
_VALUE = _TOKENS.mint(LOCAL).value


@pytest.mark.parametrize(
    ("grant", "asked"),
    [
        (CALLS, {"scopes": [Scope.ADMIN]}),
        (CALLS, {"scopes": [Scope.API]}),
        (CALLS, {"changes": [Change.TOOLS]}),
        (CALLS, {"agent": "other"}),
        (CALLS, {"seconds": 7201}),
        (CALLS, {"seconds": 0}),
        (CALLS, {"seconds": float("nan")}),
        (Grant("k1", frozenset([Scope.CALL]), frozenset(), token="t"), {}),
    ],
)
def test_no_token_has_more_rights_than_its_maker(grant: Grant, asked: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        Tokens().mint(grant, **asked)  # type: ignore[arg-type]
    assert caught.value.code == "VA455"


def test_a_key_without_admin_changes_everything_but_tools() -> None:
    assert CALLS.changes == set(Change) - {Change.TOOLS}
    assert LOCAL.changes == set(Change)
    assert Tokens().mint(CALLS, changes=[Change.INSTRUCTIONS])


def test_what_is_laid_down_stays_here_and_is_forgotten_in_time() -> None:
    time = Time()
    tokens = Tokens(now=time)
    session = {"instructions": "the secret plan"}
    token = tokens.mint(LOCAL, session=session)
    grant = tokens.verify(token.value)
    assert grant is not None
    assert grant.session == session
    for part in token.value[len(PREFIX) :].split("."):
        assert b"secret" not in base64.urlsafe_b64decode(part + "==")
    time.s += 61
    tokens.mint(LOCAL, session={})
    assert len(tokens._kept) == 1
    assert tokens._kept_bytes == len(json.dumps({}))


def test_what_is_laid_down_has_a_bound() -> None:
    time = Time()
    tokens = Tokens(now=time)
    large = {"instructions": "x" * (MAX_SESSION_BYTES - 100)}
    with pytest.raises(UsageError):
        tokens.mint(LOCAL, session={"instructions": "x" * MAX_SESSION_BYTES})
    for _ in range(MAX_KEPT_BYTES // MAX_SESSION_BYTES):
        tokens.mint(LOCAL, session=large)
    with pytest.raises(CapacityError):
        tokens.mint(LOCAL, session=large)
    time.s += 61
    tokens.mint(LOCAL, session=large)
