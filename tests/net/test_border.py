"""A telephone on the Internet, Kamailio and rtpengine in front of the server, as documented.

Their files are those of docs/TELEPHONY.md, read from there; only the folder they lie in is another.

    world 203.0.113.20 --- 203.0.113.7 border 10.0.0.2 --- 10.0.0.5 office
    elsewhere 198.51.100.9 --- 198.51.100.1 border
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.config import EchoModes
from gateway.media.echo import EchoMode
from gateway.sip.settings import SipSettings
from loadtest.bench.transport.namespaces import Namespace, cable, lacking, namespaces
from tests.support.certificate import certificate
from tests.support.fake_call import FakeCall, FakeStack
from tests.support.live_server import Running, serving_on_thread
from tests.support.telephone import until
from voice_agent.types import FrameFlag

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CALLER, STRANGER, OUTSIDE = "203.0.113.20", "198.51.100.9", "203.0.113.7"
INSIDE, SERVER = "10.0.0.2", "10.0.0.5"
URI = f"sip:reception@{OUTSIDE}:5061;transport=tls"
UP_WITHIN_S = 20.0


@dataclass(frozen=True)
class Border:
    world: Namespace
    elsewhere: Namespace
    office: Namespace
    trusted: Path

    async def phone(self, host: str = CALLER, **options: Any) -> dict[str, Any]:
        """A whole call from outside; see tests/support/baresip_phone.py."""
        at = self.world if host == CALLER else self.elsewhere
        options = {"host": host, "port": 6060, "rtp": 20_000, "transport": "tls",
                   "ca_file": str(self.trusted), "mediaenc": "srtp-mand"} | options  # fmt: skip
        command = at.command(
            sys.executable, "-m", "tests.support.baresip_phone", URI, json.dumps(options)
        )
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        result = json.loads(out)
        assert isinstance(result, dict)
        return result


def documented(folder: Path) -> None:
    """Writes every file of the section, by the name in its first line."""
    text = (ROOT / "docs" / "TELEPHONY.md").read_text("utf-8")
    blocks = re.findall(r"^```\n# ([\w.]+)[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name, body in blocks:
        (folder / name).write_text(body.replace("/etc/kamailio", str(folder)), "utf-8")


@contextlib.contextmanager
def running(at: Namespace, log: Path, *command: str) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(at.command(*command), stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
            assert process.poll() is None, log.read_text()[-3000:]
        finally:
            process.terminate()
            process.wait(10)


@pytest.fixture
def border(tmp_path: Path) -> Iterator[Border]:
    if lack := lacking("kamailio", "rtpengine"):
        pytest.skip(f"NOT RUN: needs {lack}")
    documented(tmp_path)
    own, trusted = certificate(tmp_path, OUTSIDE)
    for name in ("certificate.pem", "key.pem"):
        (tmp_path / name).write_bytes(own.read_bytes())
    names = ("world", "elsewhere", "border", "office")
    with namespaces(names) as (world, elsewhere, middle, office):
        cable(world, f"{CALLER}/24", middle, f"{OUTSIDE}/24")
        cable(elsewhere, f"{STRANGER}/24", middle, "198.51.100.1/24")
        elsewhere.run("ip", "route", "add", "default", "via", "198.51.100.1")
        cable(office, f"{SERVER}/24", middle, f"{INSIDE}/24")
        rtpengine = ("rtpengine", "--foreground", "--log-stderr",
                     "--config-file", str(tmp_path / "rtpengine.conf"))  # fmt: skip
        kamailio = ("kamailio", "-DD", "-E", "-f", str(tmp_path / "kamailio.cfg"),
                    "-Y", str(tmp_path), "-P", str(tmp_path / "pid"), "-m", "64")  # fmt: skip
        with (
            running(middle, tmp_path / "rtpengine.log", *rtpengine),
            running(middle, tmp_path / "kamailio.log", *kamailio),
        ):
            give_up = time.monotonic() + UP_WITHIN_S
            while "203.0.113.7:5061" not in middle.run("ss", "-Hltn"):
                assert time.monotonic() < give_up, (tmp_path / "kamailio.log").read_text()
                time.sleep(0.1)
            yield Border(world, elsewhere, office, trusted)


@contextlib.contextmanager
def served(border: Border, stack: FakeStack) -> Iterator[Running]:
    sip = SipSettings(host=SERVER, port=5060, rtp_ports=(20_000, 20_015))
    echo = EchoModes(telephone=EchoMode.OFF)
    with serving_on_thread(stack, border.office.entered, sip=sip, echo=echo, max_calls=1) as server:
        yield server


def level(call: FakeCall) -> float:
    """Of the caller's tone, at the server."""
    frames = [f.pcm.astype(float) for f in call.heard if f.flag is FrameFlag.RECEIVED]
    return float(np.median([np.abs(frame).mean() for frame in frames]))


async def test_encrypted_outside_and_plain_inside(border: Border) -> None:
    stack = FakeStack(greeting="Hello there.", reply_s=2.0, interruptible=False)
    with served(border, stack) as server:
        heard = await border.phone(seconds=4.0)
        assert heard.get("secured"), heard
        assert heard["loudest"] > 1000, "our greeting"
        await until(lambda: not server.gateway.live, "the end of the call")
    (call,) = stack.calls
    assert level(call) == pytest.approx(8000 * 2 / np.pi, rel=0.1)


async def test_a_stranger_is_turned_away_and_a_full_house_is_503(border: Border) -> None:
    stack = FakeStack(greeting="Hello there.", reply_s=2.0, interruptible=False)
    with served(border, stack) as server:
        assert await border.phone(STRANGER) == {"failed": 403}
        assert stack.calls == []
        first = asyncio.ensure_future(border.phone(seconds=8.0, port=6080, rtp=20_100))
        await until(lambda: stack.calls, "the first call")
        assert await border.phone() == {"failed": 503}
        assert "loudest" in await first
        await until(lambda: not server.gateway.live, "the end of the call")
    assert len(stack.calls) == 1
