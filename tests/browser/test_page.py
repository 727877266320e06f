"""The page in headless Chromium with a fake microphone, against a real server."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import websockets

from tests.support.fake_call import FakeStack
from tests.support.live_server import serving_on_thread

pytestmark = pytest.mark.browser
Drive = Callable[..., dict[str, Any]]


def check(saw: dict[str, Any]) -> None:
    assert saw["console_errors"] == []
    assert saw["requests_elsewhere"] == []
    assert saw["overflow_px"] <= 0
    assert saw["axe"] == []


@pytest.mark.parametrize(("width", "height", "color"), [(1280, 800, "light"), (320, 640, "dark")])
def test_a_conversation_with_a_barge_in(
    drive: Drive, server_url: str, width: int, height: int, color: str
) -> None:
    saw = drive(server_url, "call", width=width, height=height, color=color)
    check(saw)
    assert saw["connected"]
    assert saw["partial"]
    assert all(saw["transcripts"])
    assert saw["agent_rms"] > 0.01
    assert saw["heard_while_speaking"]
    assert saw["meter_out"] > 0
    assert saw["barge_in"]["unheard"]
    assert saw["barge_in"]["quiet_ms"] > 200
    assert "ms from your last sound" in saw["trace"]
    assert saw["trace_rows"] >= 4
    assert saw["live_region"]
    assert saw["ended"] == "Call ended"
    assert saw["microphone_released"]
    if "VOICE_AGENT_TEST_URL" not in os.environ:
        assert saw["transcripts"][0] == "Could you tell me when the museum opens tomorrow?"


@pytest.mark.parametrize(
    ("webrtc", "width", "color"), [("blocked", 1280, "light"), ("missing", 320, "dark")]
)
def test_a_conversation_where_webrtc_cannot_connect(
    drive: Drive, webrtc: str, width: int, color: str
) -> None:
    stack = FakeStack(reply_s=9.0, reply_text="The museum opens at ten tomorrow morning. " * 4)
    with serving_on_thread(stack) as server:
        saw = drive(server.url, "socket", webrtc=webrtc, width=width, color=color)
    check(saw)
    assert "No direct connection: going through the web server…" in saw["statuses"]
    assert "Listening, through the web server" in saw["statuses"]
    assert saw["offers"] == {"first": 1 if webrtc == "blocked" else 0, "second": 0}, (
        "it is tried once"
    )
    assert [socket["url"][:2] for socket in saw["sockets"]] == ["ws"] * 2
    assert all(socket["up"] > 10 and "/rtc/socket" in socket["url"] for socket in saw["sockets"])
    assert saw["sockets"][0]["down"] > 100
    assert saw["agent_rms"] > 0.01
    assert saw["meter_out"] > 0
    assert saw["heard_while_speaking"]
    assert saw["barge_in"]["unheard"]
    assert saw["barge_in"]["quiet_ms"] > 200
    assert saw["microphone_released"]
    assert saw["ended"] == "Call ended"
    first, second = stack.calls
    assert first.behind_ms
    assert all(0 < ms < 2000 for ms in first.behind_ms), first.behind_ms
    assert saw["muted"] == "true"
    assert second.mutes[-1] is True
    assert second.messages == [("user", "When do you open?")]
    assert {first.ended, second.ended} == {"caller_hung_up"}


def test_a_refused_socket_says_why(drive: Drive) -> None:
    key = "correct horse battery staple"
    with serving_on_thread(FakeStack(), api_keys=(key,), calls_per_minute=1) as server:
        saw = drive(server.url, "door", key=key, webrtc="missing", width=320)
    assert "Too many new calls" in saw["notice"]
    assert "Trying again in" in saw["notice"]
    assert saw["axe"] == []
    assert saw["overflow_px"] <= 0


@pytest.mark.parametrize("color", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_at_rest(drive: Drive, server_url: str, width: int, color: str) -> None:
    check(drive(server_url, "idle", width=width, height=700, color=color))


def test_it_tells_how_far_behind_it_plays(drive: Drive) -> None:
    stack = FakeStack()
    with serving_on_thread(stack) as server:
        check(drive(server.url, "behind"))
    (call,) = stack.calls
    assert call.behind_ms, "the page's statistics were told"
    assert all(0 < ms < 2000 for ms in call.behind_ms), call.behind_ms


def test_a_full_server_tells_the_place_in_the_queue(drive: Drive) -> None:
    with serving_on_thread(FakeStack(), max_calls=1) as server:
        server.gateway.admission.max_calls = 0
        saw = drive(server.url, "full", width=320, height=640)
    assert "lines are busy" in saw["notice"]
    assert "number 1 in the queue" in saw["notice"]


def test_who_waits_is_called_in_when_a_line_is_free(drive: Drive) -> None:
    with serving_on_thread(FakeStack(), max_calls=1) as server:
        gateway = server.gateway
        gateway.admission.max_calls = 0

        def free_a_line() -> None:
            while not gateway.waiting.came:
                time.sleep(0.05)
            gateway.admission.max_calls = 1

        freeing = threading.Thread(target=free_a_line, daemon=True)
        freeing.start()
        saw = drive(server.url, "queue")
        freeing.join()
    assert "number 1 in the queue" in saw["notice"]
    assert saw["connected"]


def test_without_a_queue_a_full_server_is_tried_again(drive: Drive) -> None:
    with serving_on_thread(FakeStack(), max_calls=1, max_waiting=0) as server:
        server.gateway.admission.max_calls = 0
        saw = drive(server.url, "full")
    assert "lines are busy" in saw["notice"]
    assert "Trying again in" in saw["notice"]


def test_a_keyed_server_asks_once(drive: Drive) -> None:
    key = "correct horse battery staple"
    with serving_on_thread(FakeStack(), api_keys=(key,)) as server:
        saw = drive(server.url, "key", key=key, width=320, height=640)
    assert saw["connected"]


def test_an_insecure_page_says_how_to_fix_it(drive: Drive, server_url: str) -> None:
    saw = drive(server_url, "insecure", width=320, height=640)
    assert "--tls-self-signed" in saw["notice"]
    assert "ssh -L" in saw["notice"]
    check(saw)


def test_a_denied_microphone_is_explained(drive: Drive, server_url: str) -> None:
    saw = drive(server_url, "denied")
    assert "microphone is blocked" in saw["notice"]


def test_a_lost_connection_is_retried(drive: Drive, server_url: str) -> None:
    saw = drive(server_url, "lost")
    assert "Trying again in" in saw["notice"]
    assert saw["connected"]


@pytest.mark.parametrize("width", [320, 1280])
def test_muting_holding_to_talk_typing_and_devices(drive: Drive, width: int) -> None:
    stack = FakeStack(transcripts=("",))
    with serving_on_thread(stack) as server:
        saw = drive(server.url, "sound", width=width)
    check(saw)
    assert saw["muted"] == {"told": [True], "enabled": False, "pressed": "true"}
    assert saw["status_muted"] in ("You are muted", "Hearing you")
    assert saw["unmuted"] == {"told": [True, False], "enabled": True}
    assert saw["push"] == {"told": [True, False, True], "enabled": False}
    assert saw["held"] == {"told": [True, False, True, False], "enabled": True}
    assert saw["released"] == {"told": [True, False, True, False, True], "enabled": False}
    assert stack.calls[0].mutes[:5] == [True, False, True, False, True]
    assert saw["volume"] == pytest.approx(0.4)
    assert len(saw["microphones"]) > 1, "the browser's fake devices are offered"
    assert saw["other_microphone"] == {"enabled": False}, "another microphone is as muted"
    assert stack.calls[0].messages == [("user", "When do you open?")]
    assert saw["typed"][-1] == "When do you open?"
    assert saw["space_is_typed"] == "a b"
    assert saw["remembered"] == "40"


@pytest.mark.parametrize(
    ("locale", "words"),
    [("de-AT", "Bereit"), ("fr-FR", "Prêt"), ("es-MX", "Listo"), ("sw-KE", "Ready")],
)
def test_the_page_speaks_the_browsers_language(
    drive: Drive, server_url: str, locale: str, words: str
) -> None:
    saw = drive(server_url, "idle", locale=locale, width=320, height=700)
    check(saw)
    assert saw["status"] == words
    assert saw["language"] == (locale[:2] if words != "Ready" else "en")


@pytest.mark.parametrize(("width", "color"), [(360, "light"), (1280, "dark")])
def test_the_operator_sees_who_is_on_the_line_and_hangs_up(
    drive: Drive, width: int, color: str
) -> None:
    async def talk(url: str) -> int | None:
        async with websockets.connect(f"ws{url[4:]}/v1/realtime?model=other") as socket:
            await socket.recv()
            (live,) = server.gateway.live
            live.kept_s = lambda: 21.0
            queue = asyncio.create_task(wait(url))
            seen.update(await asyncio.to_thread(look))
            queue.cancel()
            async for _ in socket:
                pass
            return socket.close_code

    async def wait(url: str) -> None:
        async with httpx.AsyncClient(base_url=url) as client:
            ticket = ""
            while True:
                told = await client.post("/rtc/line", params={"ticket": ticket})
                ticket = told.json()["ticket"]
                await asyncio.sleep(1)

    def look() -> dict[str, Any]:
        return drive(f"{server.url}/ops", "ops", width=width, color=color)

    seen: dict[str, Any] = {}
    with serving_on_thread(FakeStack(), max_calls=1) as server:
        code = asyncio.run(talk(server.url))
    check(seen)
    assert seen["calls"] == ["other"]
    assert "1 of" in seen["figures"]
    assert seen["lines"] == ["line lost, kept 0:21"]
    assert seen["queue"][0] == "1"
    assert seen["queue"][2].startswith("about ")
    assert {"Language model", "Recognition", "Media", "Server"} <= set(seen["stages"])
    assert seen["focus_kept"] == "Hang up", "drawing the list anew takes nobody's place in it"
    assert seen["hung_up"]
    assert code == 1000


def test_the_operators_view_asks_for_a_key_that_opens_it(drive: Drive) -> None:
    key = "correct horse battery staple"
    with serving_on_thread(FakeStack(), api_keys=(key,)) as server:
        saw = drive(f"{server.url}/ops", "ops-key", key=key, width=360)
    assert not saw["shown"]
    assert saw["axe"] == []
