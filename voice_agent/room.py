"""How many files this process may open and how much memory is left, read before they run out.

Descriptors: sockets of calls and connections, pipes, model files. Memory: the machine's, or what
this process's control group may use.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from .errors import CapacityError
from .machine import CGROUP_LIMIT

BASE_FILES = 192
"""Of a server without a call: models, threads' pipes, the log; and what calls must leave free."""
FILES_PER_CALL = 8
"""Its socket, an RTP and RTCP pair for each address, a tool's or a remote model's connection."""
RESERVE_FILES = 64
RESERVE_MB = 256
"""New calls are refused below these, so that live ones never meet the end."""
MOST_FILES = 65_536
CGROUP = CGROUP_LIMIT.parent


def files_needed(max_calls: int, max_connections: int) -> int:
    return BASE_FILES + max_connections + FILES_PER_CALL * max_calls


def raise_limit(needed: int) -> int:
    """Raise the soft limit of descriptors as far as it goes (65,536 at most); returns it.

    Raises CapacityError VA204 when that is below `needed`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # the kernel's own limit is lower
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise CapacityError(
            f"this process may open {soft} files and needs {needed} for its connections and calls: "
            f"raise the hard limit (`ulimit -Hn {needed}`, LimitNOFILE={needed} in a systemd unit, "
            "`ulimits` of a container), or lower server.max_calls",
            code="VA204",
        )
    return most if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    import psutil

    return int(psutil.Process().num_fds())


def free_memory_mb() -> int:
    """What may still be allocated: the machine's available memory, or the control group's limit
    less what it uses (its inactive page cache counts as free)."""
    import psutil

    free = int(psutil.virtual_memory().available) >> 20
    try:
        limit = int((CGROUP / "memory.max").read_text("ascii"))
        used = int((CGROUP / "memory.current").read_text("ascii"))
        for line in (CGROUP / "memory.stat").read_text("ascii").splitlines():
            if line.startswith("inactive_file "):
                used -= int(line.split()[1])
    except (OSError, ValueError):  # no such group, or "max"
        return free
    return min(free, max(0, limit - used) >> 20)


class Lack(StrEnum):
    """Of the process."""

    FILES = "files"
    MEMORY = "process_memory"


@dataclass(frozen=True, slots=True)
class Room:
    """What is left for another call. max_files: the soft limit of descriptors."""

    max_files: int
    files: Callable[[], int] = open_files
    memory_mb: Callable[[], int] = free_memory_mb

    def lacks(self) -> Lack | None:
        """What another call could take that live ones need."""
        if self.files() + FILES_PER_CALL > self.max_files - RESERVE_FILES:
            return Lack.FILES
        return Lack.MEMORY if self.memory_mb() < RESERVE_MB else None

    def check_start(self) -> None:
        """Once the models are loaded. Raises CapacityError VA205 when no call would be taken."""
        free_mb = self.memory_mb()
        if free_mb < RESERVE_MB:
            raise CapacityError(
                f"with the models loaded {free_mb} MB of memory are left, and {RESERVE_MB} must be "
                "free for calls: raise the container's limit, lower engine.kv_mb, or name smaller "
                "models",
                code="VA205",
            )

    def gauges(self) -> dict[str, float]:
        """Descriptors are in the process's own metrics."""
        return {
            "memory_free_bytes": float(self.memory_mb()) * (1 << 20),
        }
