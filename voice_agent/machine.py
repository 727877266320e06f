"""What this machine is: processor, memory, GPU, disk. Reads, never changes."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")

MIN_CAPABILITY = (8, 0)
"""The oldest GPU that the kernels are compiled for."""

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Gpu:
    """usable: every stage can run on it; else `why` says what is missing."""

    name: str
    memory_mb: int
    usable: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    features: frozenset[str]
    memory_mb: int
    free_mb: int
    gpu: Gpu | None

    @property
    def key(self) -> str:
        """Names the processor in a cache of its speeds."""
        text = f"{self.cpu}/{self.cores}/{sorted(self.features)}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def inspect(*, gpu: bool = True) -> Machine:
    """Look at the machine; a few milliseconds, more when a GPU has to be asked."""
    import psutil

    model, flags = _cpuinfo(Path("/proc/cpuinfo"))
    memory = psutil.virtual_memory()
    return Machine(
        cpu=model,
        cores=usable_cores(),
        features=frozenset(f for f in FEATURES if f in flags),
        memory_mb=memory.total >> 20,
        free_mb=memory.available >> 20,
        gpu=find_gpu() if gpu else None,
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_memory_mb() -> int:
    """The machine's memory, or what this process's control group may use of it."""
    import psutil

    total = psutil.virtual_memory().total
    try:
        limit = int(CGROUP_LIMIT.read_text("ascii"))
    except (OSError, ValueError):  # no such group, or "max"
        limit = total
    return int(min(total, limit)) >> 20


def own_names() -> list[str]:
    """How others may call this machine: its host name and the addresses of its interfaces."""
    import psutil

    names = [socket.gethostname()]
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6) and "%" not in one.address:
                names.append(one.address)
    return list(dict.fromkeys(names))


def find_gpu() -> Gpu | None:
    """The first NVIDIA GPU by the driver's own tool; None when there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        name, memory = (p.strip() for p in out.stdout.splitlines()[0].rsplit(",", 1))
        memory_mb = int(memory)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    why = _why_unusable()
    return Gpu(name, memory_mb, not why, why)


def _why_unusable() -> str:
    """Why the models could not run on the driver's GPU, or ""."""
    import torch

    if torch.version.cuda is None:
        return "this PyTorch was built without CUDA (make install DEVICE=cuda)"
    if not torch.cuda.is_available():
        return f"this PyTorch needs a driver for CUDA {torch.version.cuda} or newer"
    capability = torch.cuda.get_device_capability()
    if capability < MIN_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]}; 8.0 or newer is needed"
    from voice_agent.stt.cublas import why_not_cuda

    return why_not_cuda()


def _cpuinfo(path: Path) -> tuple[str, frozenset[str]]:
    model, flags = platform.processor() or platform.machine(), frozenset[str]()
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return model, flags
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = frozenset(value.split())
            break
    return model, flags
