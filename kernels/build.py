"""Compiles the CPU kernels once per machine and loads them; says why when it can't.

One shared object with a plain C interface, built for the best instruction set this processor has
and kept in the user's cache under a hash of its sources and flags.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from kernels import compile_watch

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_SOURCE = _HERE / "decoder_step" / "cpu.cpp"
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra",
          "-Wno-maybe-uninitialized", "-Wno-uninitialized")  # fmt: skip
"""The last two: GCC 12 warns about its own AVX-512 headers."""
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
LEVELS = {
    "avx512-vnni": (_AVX512, ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")),
    "avx2": (_AVX2, ("avx2", "fma", "f16c")),
}
"""Instruction sets, best first: compiler flags, and the processor's names for what they need."""


class NativeUnavailable(Exception):
    """The native kernels can't be used here; the message says why and what would help."""


def usable_levels() -> tuple[str, ...]:
    """The instruction sets that this processor has, best first."""
    have = _cpu_flags()
    return tuple(name for name, (_, needs) in LEVELS.items() if have.issuperset(needs))


@cache
def library(level: str | None = None) -> ctypes.CDLL:
    """The compiled kernels for `level`, or the best that this processor has.

    Builds them on first use (about 15 s). Raises NativeUnavailable.
    """
    if os.environ.get("VOICE_AGENT_NATIVE_KERNELS", "on") == "off":
        raise NativeUnavailable("switched off by VOICE_AGENT_NATIVE_KERNELS=off")
    levels = usable_levels()
    if not levels:
        raise NativeUnavailable("this processor has no AVX2 (with FMA and F16C)")
    if level is not None and level not in levels:
        raise NativeUnavailable(f"this processor has no {level}")
    name = level or levels[0]
    try:
        loaded = ctypes.CDLL(str(build(name)))
    except OSError as error:  # a cache that may not hold programs, sources that were left out
        raise NativeUnavailable(f"the CPU kernels can't be loaded: {error}") from None
    log.info("native CPU kernels: %s", name)
    return loaded


def build(level: str) -> Path:
    """Compiles for `level`, or finds what was compiled before.

    VOICE_AGENT_NATIVE_FLAGS adds compiler flags (the sanitizers, in tests).
    """
    extra = os.environ.get("VOICE_AGENT_NATIVE_FLAGS", "").split()
    flags = (*_FLAGS, *LEVELS[level][0], *extra)
    key = hashlib.sha256(" ".join(flags).encode())
    for source in [*sorted(_HERE.rglob("*.h")), _SOURCE]:
        key.update(source.read_bytes())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voice-agent"
    path = folder / f"kernels-{level}-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NativeUnavailable("no C++ compiler found: install g++ (or set CXX) and start again")
    log.info("compiling the CPU kernels for %s", level)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "kernels.so"
            command = [compiler, *flags, "-o", str(made), str(_SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                raise NativeUnavailable(f"{compiler} failed: {done.stderr.strip()[-2000:]}")
            made.replace(path)  # whole or not at all, also when two processes build
        compile_watch.note(f"CPU kernels for {level}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"the CPU kernels can't be built: {error}") from None
    return path


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    for line in text.splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()
