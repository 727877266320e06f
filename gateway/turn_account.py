"""Short-lived accounts at a TURN server that shares a secret with us.

After draft-uberti-behave-turn-rest-00, which coturn calls `use-auth-secret`: the user name says
until when, and the password is its HMAC-SHA1. The server itself keeps no accounts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

LIFETIME_S = 3600
"""In which a connection may begin. One that has begun keeps its relay."""
NAME = "voice-agent"


def turn_account(secret: str, now_s: float) -> tuple[str, str]:
    """(username, credential). now_s: seconds since 1970, of a clock that the TURN server has."""
    username = f"{int(now_s) + LIFETIME_S}:{NAME}"
    digest = hmac.digest(secret.encode(), username.encode(), hashlib.sha1)
    return username, base64.b64encode(digest).decode()
