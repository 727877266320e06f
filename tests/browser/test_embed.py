"""examples/browser.html in headless Chromium, served from another origin than the server."""

from __future__ import annotations

import json
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import CHROMIUM, HERE
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving_on_thread

pytestmark = pytest.mark.browser

EXAMPLES = Path(__file__).parents[2] / "examples"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_a_page_of_ones_own_talks_to_the_server(node: str, caller_wav: Path) -> None:
    site = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=EXAMPLES))
    thread = threading.Thread(target=site.serve_forever)
    thread.start()
    try:
        origin = f"http://127.0.0.1:{site.server_port}"
        with serving_on_thread(FakeStack(), allowed_origins=(origin,)) as server:
            url = f"{origin}/browser.html?server={server.url}"
            order = {"url": url, "chromium": CHROMIUM, "wav": str(caller_wav)}
            done = subprocess.run(
                [node, str(HERE / "embed.mjs"), json.dumps(order)],
                cwd=HERE, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
    finally:
        site.shutdown()
        thread.join()
        site.server_close()
    assert done.returncode == 0, done.stderr[-2000:]
    saw = json.loads(done.stdout)
    assert [e for e in saw["errors"] if "favicon" not in e and "404" not in e] == []
    assert saw["said"].startswith("You: ")
    assert saw["voice"]
