"""Whether an OpenAI-compatible endpoint would answer, for `voice-agent doctor`.

It is asked for its list of models, not for a reply.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum

import httpx2

from .llm_section import RemoteSection
from .remote_wire import status_error

SHOWN = 5


class RemoteState(StrEnum):
    ANSWERS = "answers"
    EXPOSED = "answers, and everybody on the way can read the key"
    SILENT = "would not answer"


def check_remote(
    name: str, remote: RemoteSection, transport: httpx2.BaseTransport | None = None
) -> tuple[RemoteState, str]:
    """(state, what was found). Blocking; every wait is at most `connect_s`."""
    headers = {"Authorization": f"Bearer {remote.api_key}"} if remote.api_key else {}
    place = f"{remote.model} on {remote.base_url}"
    try:
        with httpx2.Client(
            headers=headers, timeout=remote.connect_s, transport=transport
        ) as client:
            answer = client.get(f"{remote.base_url}/models")
            found = _names(answer)
    except httpx2.RequestError as e:
        return RemoteState.SILENT, f"{place}: cannot be reached ({type(e).__name__})"
    except (ValueError, TypeError, KeyError):
        return RemoteState.SILENT, f"{place}: answers something that is no list of models"
    if answer.status_code in (404, 405):
        return _open(remote), f"{place}: {_open(remote)}; it has no list of models"
    if answer.status_code != 200:
        error = status_error(name, answer.status_code, answer.content[:4096], remote.api_key)
        return RemoteState.SILENT, f"{place}: {error} ({error.detail})"
    if remote.model not in found:
        listed = ", ".join(found[:SHOWN]) or "none"
        return RemoteState.SILENT, f"{place}: answers, and lists other models: {listed}"
    return _open(remote), f"{place}: {_open(remote)}"


def _names(answer: httpx2.Response) -> list[str]:
    if answer.status_code != 200:
        return []
    return [str(model["id"]) for model in answer.json()["data"]]


def _open(remote: RemoteSection) -> RemoteState:
    url = httpx2.URL(remote.base_url)
    if not remote.api_key or url.scheme == "https" or _loopback(url.host):
        return RemoteState.ANSWERS
    return RemoteState.EXPOSED


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
