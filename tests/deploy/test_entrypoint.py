"""The container's first process: signals passed on, the status kept, media workers waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.support.rtc_peer import peer
from tests.support.server_process import core

SCRIPT = Path(__file__).parents[2] / "docs" / "deploy" / "entrypoint.sh"
SERVER = """#!{python}
import os, signal, sys, time
got = []
for name in ("SIGTERM", "SIGINT", "SIGHUP"):
    signal.signal(getattr(signal, name), lambda n, f: got.append(signal.Signals(n).name))
print(*sys.argv[1:], flush=True)
last = ""
while last != "SIGTERM":
    if got:
        last = got.pop(0)
        print(last, flush=True)
    time.sleep(0.01)
{end}
"""


def server(tmp_path: Path, end: str, goodbye_s: int = 1) -> subprocess.Popen[str]:
    program = tmp_path / "voice-agent"
    program.write_text(SERVER.format(python=sys.executable, end=end))
    program.chmod(0o755)
    process = subprocess.Popen(
        ["/bin/sh", str(SCRIPT), "up", "--log", "json"],
        env={
            "VOICE_AGENT_BIN": str(program),
            "PATH": "/usr/bin:/bin",
            "VOICE_AGENT_GOODBYE_S": str(goodbye_s),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up --log json\n"
    return process


@pytest.mark.unit
@pytest.mark.parametrize("status", [0, 3])
def test_signals_go_to_the_server_and_its_status_is_ours(tmp_path: Path, status: int) -> None:
    process = server(tmp_path, f"sys.exit({status})")
    assert process.stdout is not None
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        assert process.stdout.readline() == f"{number.name}\n"
    assert process.wait(20) == status
    process.stdout.close()


@pytest.mark.unit
def test_a_crash_is_a_failure_and_media_workers_end_first(tmp_path: Path) -> None:
    """Its worker outlives the crash by half a second, and the script outlives the worker."""
    worker = (
        "import subprocess\n"
        "subprocess.Popen([sys.executable, '-c', "
        "\"import sys,time; time.sleep(0.5); print('BYE', flush=True)\", 'gateway.workers'])\n"
        "os.kill(os.getpid(), signal.SIGSEGV)"
    )
    process = server(tmp_path, worker, goodbye_s=15)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGSEGV
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)  # what has been said by now
    assert process.stdout.read().splitlines() == ["SIGTERM", "BYE"]
    process.stdout.close()


def may_unshare() -> bool:
    """Whether a process namespace of one's own can be had: root's."""
    return (
        subprocess.run(["unshare", "-pf", "true"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(not may_unshare(), reason="NOT RUN: needs unshare and root")
async def test_as_a_containers_first_process_it_outlives_the_last_words() -> None:
    """In a process namespace of its own, whose end would be everybody's, as in a container."""
    contained = ["unshare", "-pf", "--mount-proc", "env", f"VOICE_AGENT_BIN={sys.executable}"]
    with core(by=[*contained, "/bin/sh", str(SCRIPT)]) as server:
        workers = server.workers
        assert len(workers) == 1
        async with peer() as p:
            await p.connect(SimpleNamespace(url=server.url))  # type: ignore[arg-type]
            await p.until("heard", 2)
            os.kill(server.pid, signal.SIGSEGV)
            assert (await p.until("error"))["code"] == "VA494"
            assert (await p.until("ended"))["reason"] == "server_error"
        assert server.process.wait(20) == 128 + signal.SIGSEGV
        assert not any(psutil.pid_exists(pid) for pid in workers)
