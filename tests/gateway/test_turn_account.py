"""Accounts at a TURN server that shares a secret with us."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from pydantic import ValidationError

from gateway.config import IceServer
from gateway.turn_account import LIFETIME_S, NAME, turn_account
from voice_agent.rtc_section import IceServerConfig

pytestmark = pytest.mark.unit


def test_the_name_says_until_when_and_the_password_is_its_hmac() -> None:
    username, credential = turn_account("north wind", 1_800_000_000.9)
    assert username == f"{1_800_000_000 + LIFETIME_S}:{NAME}"
    digest = hmac.new(b"north wind", username.encode(), hashlib.sha1).digest()
    assert base64.b64decode(credential) == digest


def test_every_client_gets_an_account_of_its_own_time_and_never_the_secret() -> None:
    server = IceServer(("turn:relay.example.org",), secret="north wind")
    first, later = server.for_client(1_000.0), server.for_client(1_060.0)
    assert first["username"] != later["username"]
    assert first["credential"] != later["credential"]
    assert set(first) == {"urls", "username", "credential"}
    assert "north wind" not in f"{first}{server!r}"


@pytest.mark.parametrize(
    "bad",
    [{"secret": "s", "username": "u"}, {"secret": "s", "credential": "c"}, {"username": "u"},
     {"credential": "c"}],
)  # fmt: skip
def test_an_account_is_one_or_the_other(bad: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        IceServerConfig(urls=("turn:relay.example.org",), **bad)


def test_the_secret_is_not_shown() -> None:
    assert "north" not in repr(IceServerConfig(urls=("turn:a",), secret="north wind"))
