"""Downloading archives with the machine's own package clients, run as subprocesses.

`pip download` and `npm pack` bring the operator's mirrors, proxies and certificates with them, so
no address of a registry is known here. Source distributions are refused: no set-up code runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from voice_agent.errors import VoiceAgentError

from . import faults
from .spec import NpmSource, Wheel

_NETWORK = re.compile(
    r"name resolution|name or service not known|newconnectionerror|failed to establish|"
    r"connect(ion)? ?(timeout|timed out|refused|reset|broken|aborted)|max retries|"
    r"network is unreachable|enotfound|eai_again|econnrefused|econnreset|etimedout|"
    r"nodename nor servname|proxyerror|read timed out|ssl(error|certverification)",
    re.IGNORECASE,
)
_FULL = re.compile(r"no space left|enospc|disk quota exceeded", re.IGNORECASE)
_RAW = re.compile(r"Progress (\d+) of (\d+)")


class Runner(Protocol):
    """Runs a command, feeding each output line to `on_line`; returns (exit status, all output).

    Raises FileNotFoundError when there is no such program.
    """

    def __call__(
        self, argv: Sequence[str], *, cwd: Path, on_line: Callable[[str], None]
    ) -> tuple[int, str]: ...


def run(argv: Sequence[str], *, cwd: Path, on_line: Callable[[str], None]) -> tuple[int, str]:
    """The real runner. The child dies with the call, also when the caller is interrupted."""
    with subprocess.Popen(
        list(argv),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as child:
        lines: list[str] = []
        try:
            assert child.stdout is not None
            for line in child.stdout:
                lines.append(line)
                on_line(line)
        except BaseException:
            child.kill()
            raise
        status = child.wait()
    return status, "".join(lines)


class PackageClient:
    """Fetches one wheel or tarball at a time into a folder of its own."""

    def __init__(self, runner: Runner = run, python: str = sys.executable) -> None:
        self._run = runner
        self._python = python
        self._pip: tuple[int, int] | None = None

    def wheel(self, wheel: Wheel, scratch: Path, on_bytes: Callable[[int, int], None]) -> Path:
        """The downloaded .whl under `scratch`. Raises VA412, VA414, VA415, VA418."""
        version = self._pip_version(scratch)
        argv = [self._python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        argv += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--retries", "3"]
        if version >= (24, 1):
            argv += ["--progress-bar", "raw"]
        if version >= (25, 1):
            argv += ["--resume-retries", "10"]
        with _folder(scratch) as to:
            argv += ["-d", str(to), wheel.requirement]
            status, output = self._run(argv, cwd=to, on_line=_progress(on_bytes))
            if status != 0:
                raise _classify(wheel.requirement, output, scratch)
            return _only(to, "*.whl", wheel.requirement, scratch)

    def npm(self, source: NpmSource, scratch: Path) -> Path:
        """The packed .tgz under `scratch`. Raises VA413, VA414, VA415, VA418."""
        what = f"{source.package}@{source.version}"
        npm = shutil.which("npm") or "npm"
        with _folder(scratch) as to:
            argv = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(to)]
            try:
                status, output = self._run([*argv, what], cwd=to, on_line=lambda _: None)
            except FileNotFoundError as e:
                raise faults.no_npm() from e
            if status != 0:
                raise _classify(what, output, scratch)
            return _only(to, "*.tgz", what, scratch)

    def _pip_version(self, cwd: Path) -> tuple[int, int]:
        """(major, minor), asked once. Raises VA412 when this interpreter has no pip."""
        if self._pip is None:
            argv = [self._python, "-m", "pip", "--version"]
            status, output = self._run(argv, cwd=cwd, on_line=lambda _: None)
            found = re.search(r"^pip (\d+)\.(\d+)", output, re.MULTILINE)
            if status != 0 or found is None:
                raise faults.no_pip(self._python)
            self._pip = int(found[1]), int(found[2])
        return self._pip


class _folder:
    """A new folder under `parent`; what was moved out of it stays, the rest goes."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="get-", dir=self._parent))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _only(folder: Path, pattern: str, what: str, to: Path) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise faults.not_in_registry(what, f"{len(found)} files of kind {pattern} came")
    return found[0].replace(to / found[0].name)


def _progress(on_bytes: Callable[[int, int], None]) -> Callable[[str], None]:
    def on_line(line: str) -> None:
        if m := _RAW.search(line):
            on_bytes(int(m[1]), int(m[2]))

    return on_line


def _classify(what: str, output: str, where: Path) -> VoiceAgentError:
    if _FULL.search(output):
        return faults.disk_full(where)
    if _NETWORK.search(output):
        return faults.no_network(what)
    lines = [s for s in (line.strip() for line in output.splitlines()) if s]
    return faults.not_in_registry(what, lines[-1][:300] if lines else "no reason was given")
