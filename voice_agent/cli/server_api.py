"""A running server, asked over its own port: `voice-agent call`, `top`, `drain` and `reload`."""

from __future__ import annotations

import ssl
from typing import Any

import httpx2

from voice_agent.config import Config
from voice_agent.errors import InternalError, UsageError

ANSWER_S = 10.0


class ServerApi:
    """server: its address; None: as configured here. key: with the scope `admin`; None: the first
    of the configuration's."""

    def __init__(self, config: Config, server: str | None = None, key: str | None = None) -> None:
        self.base = (server or own_address(config)).rstrip("/")
        key = key or next(iter(config.server.api_keys), None)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        own = server is None and config.server.tls_self_signed
        self._verify: ssl.SSLContext | bool = _own_certificate(config) if own else True

    def get(self, path: str) -> Any:
        """The answer's JSON. Raises as `post`."""
        return self._ask("GET", path, None, ANSWER_S)

    def post(self, path: str, body: dict[str, Any], wait_s: float = ANSWER_S) -> Any:
        """The answer's JSON, None for an empty one. Raises UsageError with the server's own words
        and code, InternalError VA508 if there is none."""
        return self._ask("POST", path, body, wait_s)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, wait_s: float) -> Any:
        try:
            with httpx2.Client(headers=self._headers, verify=self._verify) as client:
                answer = client.request(method, self.base + path, json=body, timeout=wait_s)
        except httpx2.HTTPError as error:
            raise InternalError(
                f"no server answers at {self.base}: start one with `voice-agent up`, or name it "
                f"with --server ({error})",
                code="VA508",
            ) from error
        if answer.is_success:
            return answer.json() if answer.content else None
        try:
            told = answer.json()["error"]
            code, message = str(told["code"]), str(told["message"])
        except (ValueError, KeyError, TypeError):
            code = "VA508"
            message = f"{self.base} answered {answer.status_code}: is that this server?"
        if answer.status_code in (401, 403):
            message += " Name a key with the scope admin: --key, or VOICE_AGENT_KEY."
        raise UsageError(message, code=code if code.startswith("VA") else "VA508")


def own_address(config: Config) -> str:
    server = config.server
    host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host
    bracketed = f"[{host}]" if ":" in host else host
    return f"{'https' if server.https else 'http'}://{bracketed}:{server.port}"


def _own_certificate(config: Config) -> ssl.SSLContext:
    """Trusts the certificate that `--tls-self-signed` made on this machine, and no other."""
    from voice_agent.cli.tls import self_signed
    from voice_agent.models import data_dir

    certificate, _ = self_signed(data_dir() / "tls", config.server.host)
    return ssl.create_default_context(cafile=str(certificate))
