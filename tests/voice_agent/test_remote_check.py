"""What the doctor says of an endpoint."""

from __future__ import annotations

import httpx2
import pytest

from voice_agent.llm_section import RemoteSection
from voice_agent.remote_check import RemoteState, check_remote

pytestmark = pytest.mark.unit

KEY = "sk-do-not-show-me"
LIST = {"object": "list", "data": [{"id": "m"}, {"id": "other"}]}


def check(
    answer: httpx2.Response | Exception, **settings: object
) -> tuple[RemoteState, str, list[httpx2.Request]]:
    asked: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    section = {"base_url": "https://far/v1/", "model": "m", "api_key": KEY, **settings}
    remote = RemoteSection.model_validate(section)
    state, text = check_remote("primary", remote, httpx2.MockTransport(handle))
    assert KEY not in text
    return state, text, asked


def test_a_listed_model_answers() -> None:
    state, text, asked = check(httpx2.Response(200, json=LIST))
    assert (state, text) == (RemoteState.ANSWERS, "m on https://far/v1: answers")
    assert str(asked[0].url) == "https://far/v1/models"
    assert asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx2.Response(200, json={"data": [{"id": "x"}]}), "lists other models: x"),
        (httpx2.Response(200, json={"data": []}), "lists other models: none"),
        (httpx2.Response(200, text="<html>"), "no list of models"),
        (httpx2.Response(200, json={"data": 3}), "no list of models"),
        (httpx2.Response(401, json={"error": {"message": f"bad {KEY}"}}), "HTTP 401"),
        (httpx2.Response(503, text="Loading model"), "Loading model"),
        (httpx2.ConnectError("refused"), "cannot be reached"),
    ],
)
def test_what_would_not_answer(answer: httpx2.Response | Exception, says: str) -> None:
    state, text, _ = check(answer)
    assert state is RemoteState.SILENT
    assert says in text


def test_an_endpoint_without_a_list_may_answer() -> None:
    state, text, _ = check(httpx2.Response(404))
    assert state is RemoteState.ANSWERS
    assert "no list" in text


@pytest.mark.parametrize(
    ("url", "key", "state"),
    [
        ("http://10.0.0.5:8000/v1", KEY, RemoteState.EXPOSED),
        ("http://10.0.0.5:8000/v1", "", RemoteState.ANSWERS),
        ("http://127.0.0.1:8000/v1", KEY, RemoteState.ANSWERS),
        ("http://localhost:8000/v1", KEY, RemoteState.ANSWERS),
        ("http://gpu.example/v1", KEY, RemoteState.EXPOSED),
    ],
)
def test_a_key_on_an_open_line_is_said(url: str, key: str, state: RemoteState) -> None:
    assert check(httpx2.Response(200, json=LIST), base_url=url, api_key=key)[0] is state
