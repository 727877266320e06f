"""X-Twilio-Signature: that a request comes from who knows the account's auth token.

https://www.twilio.com/docs/usage/security: base64(HMAC-SHA1(auth token, URL)). The platform signs
the URL as it was told it, and there spellings differ, so each that means this request is tried.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator

HEADER = "x-twilio-signature"


def signed(auth_token: str, url: str) -> str:
    mac = hmac.new(auth_token.encode(), url.encode(), hashlib.sha1)
    return base64.b64encode(mac.digest()).decode("ascii")


def genuine(auth_token: str, offered: str, host: str, path: str, query: str) -> bool:
    """host: as in the Host header. Every spelling is compared, each in constant time."""
    given = offered.encode("utf-8", "replace")
    matches = [
        hmac.compare_digest(given, signed(auth_token, url).encode())
        for url in _spellings(host, path, query)
    ]
    return any(matches)


def _spellings(host: str, path: str, query: str) -> Iterator[str]:
    bare = host.removesuffix(":443")
    hosts = {bare, f"{bare}:443"} if bare != host or ":" not in host else {host}
    tail = f"?{query}" if query else ""
    for scheme in ("wss", "https"):
        for place in sorted(hosts):
            for end in (path, path.rstrip("/") + "/"):
                yield f"{scheme}://{place}{end}{tail}"
