"""The page in headless Chromium whose connection is killed in the midst of a reply."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cut_proxy import CutProxy
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving_on_thread
from voice_agent.audio import write_wav

pytestmark = pytest.mark.browser
Drive = Callable[..., dict[str, Any]]

STORY = "The museum opens at ten tomorrow morning, and the last tickets are sold late. " * 8
KEPT = "Reconnecting: your call is kept…"


@pytest.fixture
def silent_wav(tmp_path: Path) -> str:
    path = tmp_path / "silence.wav"
    write_wav(path, np.zeros(48_000, np.int16), 48_000)
    return str(path)


def kill_worker(server: Running) -> None:
    pool = server.gateway.rtc_workers
    assert pool is not None
    os.kill(pool.workers[0].pid or 0, signal.SIGKILL)


def close_sockets(server: Running) -> None:
    """The server's end of the media path is gone, without a goodbye."""
    (call,) = server.gateway.resumable
    line: Any = call._carrier.line  # type: ignore[union-attr]
    for transceiver in line._leg._pc.getTransceivers():
        for protocol in transceiver.sender.transport.transport._connection._protocols:
            call.answer.get_loop().call_soon_threadsafe(protocol.transport.abort)


@contextlib.contextmanager
def in_the_midst_of_a_reply(
    stack: FakeStack, act: Callable[[], None], said_s: float = 2.0
) -> Iterator[None]:
    """act: once, when so much of the first reply has been said."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if stack.calls and (stack.calls[0].played or 0) > said_s * 24_000:
                act()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def went_on(saw: dict[str, Any], stack: FakeStack, losses: int = 1) -> None:
    """losses: of the line, at most."""
    assert saw["console_errors"] == []
    assert saw["axe"] == []
    assert saw["overflow_px"] <= 0
    assert KEPT in saw["statuses"]
    assert saw["agent_rms"] > 0.01, "the voice is heard again"
    assert saw["heard_after"].startswith(saw["heard_before"])
    assert saw["replies"] == 1, "it is the same reply"
    assert saw["cut"] == 0
    (call,) = stack.calls
    assert 1 <= len(call.losses) <= losses
    assert call.ended == "caller_hung_up"


@pytest.mark.parametrize(
    ("kill", "workers", "width", "fails"),
    [
        (close_sockets, 0, 1280, 0),
        pytest.param(kill_worker, 1, 320, 2, marks=pytest.mark.slow),
    ],
)
def test_a_reply_goes_on_over_a_new_connection(
    drive: Drive,
    silent_wav: str,
    kill: Callable[[Running], None],
    workers: int,
    width: int,
    fails: int,
) -> None:
    stack = FakeStack(greeting=STORY, reply_s=40.0)
    with (
        serving_on_thread(stack, media_workers=workers) as server,
        in_the_midst_of_a_reply(stack, lambda: kill(server)),
    ):
        saw = drive(server.url, "resume", wav=silent_wav, width=width, fails=fails)
        metrics = server.gateway.metrics.render().decode()
    went_on(saw, stack)
    assert 'line_losses_total{what="resumed"} 1.0' in metrics


def test_a_reply_goes_on_over_a_new_socket(drive: Drive, silent_wav: str) -> None:
    stack = FakeStack(greeting=STORY, reply_s=40.0)
    with (
        serving_on_thread(stack, allowed_hosts=("127.0.0.1",)) as server,
        CutProxy(server.port) as proxy,
        in_the_midst_of_a_reply(stack, proxy.cut),
    ):
        saw = drive(proxy.url, "resume", wav=silent_wav, webrtc="missing")
    went_on(saw, stack)


@pytest.mark.slow
def test_a_call_that_was_kept_for_too_long_says_so(drive: Drive, silent_wav: str) -> None:
    stack = FakeStack(greeting=STORY, reply_s=40.0)
    with (
        serving_on_thread(stack, hold_s=2.0) as server,
        in_the_midst_of_a_reply(stack, lambda: close_sockets(server)),
    ):
        saw = drive(server.url, "resume-late", wav=silent_wav, width=320)
    assert saw["console_errors"] == []
    assert saw["axe"] == []
    assert KEPT in saw["statuses"]
    assert "Your call was kept for a while and has ended" in saw["notice"]
    assert "Try again" in saw["notice"]
    assert saw["microphone_released"]
    assert stack.calls[0].ended == "transport_lost"
